// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/update_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gemini/half_float.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/update/update_memory.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gemini::client {
namespace {

constexpr int64_t kCount = 1'033;  // Prime: every path has a tail.

std::vector<VectorPath> Paths() {
  std::vector<VectorPath> paths;
  for (const VectorPath path : kAllVectorPaths) {
    if (VectorPathAvailable(path)) paths.push_back(path);
  }
  return paths;
}

class UpdateKernelTest : public ::testing::TestWithParam<UpdateFormats> {
 protected:
  OptimizerKind kind() const { return std::get<0>(GetParam()); }
  UpdateMemory Memory(const std::vector<ElementBits>& values, int64_t shift = 0) const {
    return UpdateMemory(std::get<1>(GetParam()), std::get<2>(GetParam()), values, shift);
  }
};

INSTANTIATE_TEST_SUITE_P(All, UpdateKernelTest,
                         ::testing::Combine(::testing::ValuesIn(kAllOptimizerKinds),
                                            ::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllElementTypes)),
                         NameOfFormats);

struct Element {
  float p, m, v;
};

// The formulas of client/kernels/update_rules.h again, on one element; this file is compiled
// without contraction.
Element Formula(const UpdateSettings& s, float p, float grad, float m, float v) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const double t = static_cast<double>(s.step);
  const float beta1 = f(s.beta1);
  const float beta2 = f(s.beta2);
  const double root2 = std::sqrt(1 - std::pow(double{beta2}, t));
  const double correction = root2 / (1 - std::pow(double{beta1}, t));
  const float scaled = grad * f(s.gradient_scale);
  const float decayed = std::fmaf(f(s.weight_decay), p, scaled);
  const auto ratio = [&](float g) {
    m = std::fmaf(beta1, m, (1 - beta1) * g);
    v = std::fmaf(beta2, v, (1 - beta2) * (g * g));
    return m / (std::sqrt(v) + f(s.epsilon * root2));
  };
  switch (s.kind) {
    case OptimizerKind::kAdamW: {
      const float kept = p * f(1 - s.learning_rate * s.weight_decay);
      p = std::fmaf(f(-s.learning_rate * correction), ratio(scaled), kept);
      break;
    }
    case OptimizerKind::kAdam:
      p = std::fmaf(f(-s.learning_rate * correction), ratio(decayed), p);
      break;
    case OptimizerKind::kSgd:
      m = s.step == 1 ? decayed : std::fmaf(f(s.momentum), m, f(1 - s.dampening) * decayed);
      p = std::fmaf(f(-s.learning_rate), s.nesterov ? std::fmaf(f(s.momentum), m, decayed) : m, p);
      break;
    case OptimizerKind::kLamb: {
      const float u = std::fmaf(f(correction), ratio(scaled), f(s.weight_decay) * p);
      p = std::fmaf(f(-s.learning_rate * s.trust_ratio), u, p);
      break;
    }
    case OptimizerKind::kLars:
      m = std::fmaf(f(s.momentum), m, f(s.learning_rate * s.trust_ratio) * decayed);
      p = p - m;
      break;
  }
  return {p, m, v};
}

TEST_P(UpdateKernelTest, EachElementFollowsTheFormulaToTheBit) {
  const std::vector<ElementBits> values = RandomElements(kCount, 1);
  for (const int64_t step : {1, 7}) {
    UpdateMemory memory = Memory(values);
    UpdateSettings settings = SettingsOf(kind());
    settings.step = step;
    const UpdateStreams out = memory.OutOfPlace();
    UpdateElements(settings, out, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const Element expected = Formula(settings, memory.OldParam(i), memory.Grad(i),
                                       std::bit_cast<float>(values[i].exp_avg),
                                       std::bit_cast<float>(values[i].exp_avg_sq));
      ASSERT_EQ(std::bit_cast<uint32_t>(memory.NewParam(i)), std::bit_cast<uint32_t>(expected.p))
          << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(out.new_exp_avg[i]), std::bit_cast<uint32_t>(expected.m))
          << i;
      if (out.param_type == ElementType::kFp16) {
        ASSERT_EQ(static_cast<const uint16_t*>(out.new_param)[i], Fp16Of(expected.p)) << i;
      }
      if (!HasSecondMoment(kind())) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(out.new_exp_avg_sq[i]), std::bit_cast<uint32_t>(expected.v))
          << i;
    }
  }
}

TEST_P(UpdateKernelTest, EveryPathGivesTheBitsOfThePortableOne) {
  std::vector<ElementBits> values = SpecialElements();
  const std::vector<ElementBits> random = RandomElements(kCount, 2);
  values.insert(values.end(), random.begin(), random.end());
  const UpdateSettings settings = SettingsOf(kind());
  std::string expected;
  for (const VectorPath path : Paths()) {
    UpdateMemory memory = Memory(values);
    UpdateElementsThrough(path, settings, memory.OutOfPlace(), memory.count());
    if (path == VectorPath::kPortable) expected = memory.WrittenOutOfPlace();
    EXPECT_TRUE(memory.WrittenOutOfPlace() == expected) << VectorPathName(path);
    int64_t num_nans = 0;
    const auto check_nan = [&](float value) {
      if (!std::isnan(value)) return;
      ++num_nans;
      ASSERT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00000u);
    };
    const UpdateStreams out = memory.OutOfPlace();
    for (int64_t i = 0; i < memory.count(); ++i) {
      check_nan(memory.NewParam(i));
      check_nan(out.new_exp_avg[i]);
      if (HasSecondMoment(kind())) check_nan(out.new_exp_avg_sq[i]);
    }
    EXPECT_GT(num_nans, 0);
  }
}

TEST_P(UpdateKernelTest, CallsAlignmentAndPlaceChangeNoBit) {
  const std::vector<ElementBits> values = RandomElements(kCount, 3);
  const UpdateSettings settings = SettingsOf(kind());
  UpdateMemory whole = Memory(values);
  UpdateElements(settings, whole.OutOfPlace(), kCount);
  std::mt19937_64 random(/*seed=*/4);
  for (const VectorPath path : Paths()) {
    for (int64_t shift = 0; shift < 40; ++shift) {
      UpdateMemory apart = Memory(values, shift);
      UpdateMemory in_place = Memory(values, shift);
      for (int64_t from = 0; from < kCount;) {
        const auto count = std::min<int64_t>(kCount - from, static_cast<int64_t>(random() % 300));
        UpdateElementsThrough(path, settings, apart.OutOfPlace(from), count);
        UpdateElementsThrough(path, settings, in_place.InPlace(from), count);
        from += count;
      }
      ASSERT_TRUE(apart.WrittenOutOfPlace() == whole.WrittenOutOfPlace())
          << VectorPathName(path) << ", shifted by " << shift;
      const bool has_second_moment = HasSecondMoment(kind());
      ASSERT_TRUE(in_place.WrittenInPlace(has_second_moment) ==
                  whole.WrittenOutOfPlace(has_second_moment))
          << VectorPathName(path) << " in place, shifted by " << shift;
    }
  }
}

// Then no element is at a multiple of 64 bytes in all outputs.
TEST_P(UpdateKernelTest, StreamsThatAreAlignedDifferentlyGetTheSameBits) {
  const std::vector<ElementBits> values = RandomElements(kCount, 5);
  for (const VectorPath path : Paths()) {
    UpdateMemory whole = Memory(values);
    UpdateMemory parted = Memory(values);
    UpdateMemory elsewhere = Memory(values, /*shift=*/3);
    UpdateStreams streams = parted.OutOfPlace();
    streams.new_exp_avg = elsewhere.OutOfPlace().new_exp_avg;
    UpdateElementsThrough(path, SettingsOf(kind()), whole.OutOfPlace(), kCount);
    UpdateElementsThrough(path, SettingsOf(kind()), streams, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(parted.NewParam(i), whole.NewParam(i)) << i;
      ASSERT_EQ(streams.new_exp_avg[i], whole.OutOfPlace().new_exp_avg[i]) << i;
    }
  }
}

TEST_P(UpdateKernelTest, NullMomentsAreZeros) {
  std::vector<ElementBits> values = RandomElements(kCount, 6);
  for (ElementBits& value : values) value.exp_avg = value.exp_avg_sq = 0;
  for (const VectorPath path : Paths()) {
    UpdateMemory from_zeros = Memory(values);
    UpdateElementsThrough(path, SettingsOf(kind()), from_zeros.OutOfPlace(), kCount);
    UpdateMemory from_null = Memory(values);
    UpdateStreams streams = from_null.OutOfPlace();
    streams.exp_avg = nullptr;
    streams.exp_avg_sq = nullptr;
    UpdateElementsThrough(path, SettingsOf(kind()), streams, kCount);
    EXPECT_TRUE(from_null.WrittenOutOfPlace() == from_zeros.WrittenOutOfPlace());
  }
}

TEST_P(UpdateKernelTest, NaNAndInfinityPassThrough) {
  std::vector<ElementBits> values = RandomElements(kCount, 9);
  values[3].grad = 0xffc12345;  // Some NaN.
  values[5].grad = 0x7f800000;  // Infinity.
  UpdateMemory memory = Memory(values);
  const UpdateStreams out = memory.OutOfPlace();
  UpdateElements(SettingsOf(kind()), out, kCount);
  EXPECT_EQ(std::bit_cast<uint32_t>(memory.NewParam(3)), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(out.new_exp_avg[3]), 0x7fc00000u);
  EXPECT_FALSE(std::isfinite(memory.NewParam(5)));
  EXPECT_TRUE(std::isinf(out.new_exp_avg[5]));
  EXPECT_TRUE(std::isfinite(memory.NewParam(4)));
  const auto* const words = static_cast<const uint16_t*>(out.new_param);
  if (out.param_type == ElementType::kBf16) {
    EXPECT_EQ(words[3], 0x7fc0);
  }
  if (out.param_type == ElementType::kFp16) {
    EXPECT_EQ(words[3], 0x7e00);
  }
}

#if defined(__x86_64__)
TEST_P(UpdateKernelTest, AThreadThatFlushesDenormalsGetsTheSameBits) {
  const std::vector<ElementBits> values = RandomElements(kCount, 10);
  UpdateMemory usual = Memory(values);
  UpdateElements(SettingsOf(kind()), usual.OutOfPlace(), kCount);
  UpdateMemory flushing = Memory(values);
  const unsigned before = _mm_getcsr();
  // Flushes to zero, takes denormals for zeros, rounds towards zero.
  const unsigned changed = 0xffc0;
  _mm_setcsr(changed);
  UpdateElements(SettingsOf(kind()), flushing.OutOfPlace(), kCount);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & 0xffc0, changed);
  EXPECT_TRUE(flushing.WrittenOutOfPlace() == usual.WrittenOutOfPlace());
}
#endif

}  // namespace
}  // namespace gemini::client
