// SPDX-License-Identifier: Apache-2.0
#include "client/adamw.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr int64_t kCount = 4099;  // Prime: every path has a tail.

struct Tensors {
  std::vector<float> param, grad, exp_avg, exp_avg_sq;
  bool operator==(const Tensors& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(param, other.param) && same(exp_avg, other.exp_avg) &&
           same(exp_avg_sq, other.exp_avg_sq);
  }
};

Tensors RandomTensors(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Tensors t;
  for (int64_t i = 0; i < kCount; ++i) {
    t.param.push_back(normal(random));
    // Gradients over many magnitudes, denormal squares included.
    t.grad.push_back(normal(random) * std::pow(10.0f, static_cast<float>(random() % 25) - 22.0f));
    t.exp_avg.push_back(normal(random) * 0.1f);
    const float root = normal(random) * 0.1f;
    t.exp_avg_sq.push_back(root * root);
  }
  return t;
}

Tensors Fresh() {
  Tensors t;
  t.param.assign(kCount, -7);
  t.exp_avg.assign(kCount, -7);
  t.exp_avg_sq.assign(kCount, -7);
  return t;
}

AdamWBuffers Buffers(const Tensors& in, Tensors& out, int64_t from = 0) {
  return {in.param.data() + from,      in.grad.data() + from,   in.exp_avg.data() + from,
          in.exp_avg_sq.data() + from, out.param.data() + from, out.exp_avg.data() + from,
          out.exp_avg_sq.data() + from};
}

const AdamWSettings kSettings = {.learning_rate = 3e-4,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .epsilon = 1e-8,
                                 .weight_decay = 0.1,
                                 .step = 7,
                                 .gradient_scale = 0.37};

TEST(AdamWTest, EveryPathGivesTheBitsOfThePortableOne) {
  const Tensors in = RandomTensors(1);
  Tensors expected = Fresh();
  AdamWUpdateThrough(AdamWPath::kPortable, kSettings, Buffers(in, expected), kCount);
  int paths = 0;
  for (AdamWPath path : kAllAdamWPaths) {
    if (!AdamWPathAvailable(path)) continue;
    ++paths;
    Tensors out = Fresh();
    AdamWUpdateThrough(path, kSettings, Buffers(in, out), kCount);
    EXPECT_TRUE(out == expected) << "path " << static_cast<int>(path);
  }
  RecordProperty("paths", paths);
  Tensors chosen = Fresh();
  AdamWUpdate(kSettings, Buffers(in, chosen), kCount);
  EXPECT_TRUE(chosen == expected);
}

TEST(AdamWTest, PortablePathRoundsEachStepOnceAsSpecified) {
  const Tensors in = RandomTensors(2);
  Tensors out = Fresh();
  AdamWUpdate(kSettings, Buffers(in, out), kCount);
  const auto f = [](double value) { return static_cast<float>(value); };
  for (int64_t i = 0; i < kCount; ++i) {
    // The header's formula again, one volatile a step, so that nothing is contracted.
    volatile float g = in.grad[i] * f(0.37);
    volatile float gg = g * g;
    volatile float fresh_m = f(1 - 0.9) * g;
    volatile float fresh_v = f(1 - 0.95) * gg;
    const float m = std::fmaf(f(0.9), in.exp_avg[i], fresh_m);
    const float v = std::fmaf(f(0.95), in.exp_avg_sq[i], fresh_v);
    volatile float root = std::sqrt(v);
    volatile float scaled = root / f(std::sqrt(1 - std::pow(0.95, 7.0)));
    volatile float d = scaled + f(1e-8);
    volatile float ratio = m / d;
    volatile float decayed = in.param[i] * f(1 - 3e-4 * 0.1);
    const float p = std::fmaf(f(-3e-4 / (1 - std::pow(0.9, 7.0))), ratio, decayed);
    ASSERT_EQ(std::bit_cast<uint32_t>(out.exp_avg[i]), std::bit_cast<uint32_t>(m)) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(out.exp_avg_sq[i]), std::bit_cast<uint32_t>(v)) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(out.param[i]), std::bit_cast<uint32_t>(p)) << i;
  }
}

TEST(AdamWTest, SplittingIntoCallsChangesNoBit) {
  const Tensors in = RandomTensors(3);
  Tensors whole = Fresh();
  AdamWUpdate(kSettings, Buffers(in, whole), kCount);
  std::mt19937_64 random(/*seed=*/4);
  for (int round = 0; round < 50; ++round) {
    Tensors pieces = Fresh();
    for (int64_t from = 0; from < kCount;) {
      const int64_t count =
          std::min<int64_t>(kCount - from, 1 + static_cast<int64_t>(random() % 300));
      AdamWUpdate(kSettings, Buffers(in, pieces, from), count);
      from += count;
    }
    ASSERT_TRUE(pieces == whole) << "round " << round;
  }
}

TEST(AdamWTest, InPlaceEqualsOutOfPlace) {
  for (AdamWPath path : kAllAdamWPaths) {
    if (!AdamWPathAvailable(path)) continue;
    Tensors in = RandomTensors(5);
    Tensors out = Fresh();
    AdamWUpdateThrough(path, kSettings, Buffers(in, out), kCount);
    AdamWUpdateThrough(path, kSettings, Buffers(in, in), kCount);
    EXPECT_TRUE(in == out) << "path " << static_cast<int>(path);
  }
}

TEST(AdamWTest, NullMomentsAreZeros) {
  Tensors in = RandomTensors(6);
  AdamWSettings settings = kSettings;
  settings.step = 1;
  Tensors from_null = Fresh();
  AdamWBuffers buffers = Buffers(in, from_null);
  buffers.exp_avg = nullptr;
  buffers.exp_avg_sq = nullptr;
  AdamWUpdate(settings, buffers, kCount);
  in.exp_avg.assign(kCount, 0);
  in.exp_avg_sq.assign(kCount, 0);
  Tensors from_zeros = Fresh();
  AdamWUpdate(settings, Buffers(in, from_zeros), kCount);
  EXPECT_TRUE(from_null == from_zeros);
}

TEST(AdamWTest, FollowsTheDoublePrecisionReferenceOverManySteps) {
  Tensors t = RandomTensors(7);
  t.exp_avg.assign(kCount, 0);
  t.exp_avg_sq.assign(kCount, 0);
  std::vector<double> p(t.param.begin(), t.param.end()), m(kCount, 0.0), v(kCount, 0.0);
  std::mt19937_64 random(/*seed=*/8);
  std::normal_distribution<float> normal(0, 0.01f);
  AdamWSettings s = kSettings;
  for (s.step = 1; s.step <= 20; ++s.step) {
    for (float& g : t.grad) g = normal(random);
    AdamWUpdate(s, Buffers(t, t), kCount);
    const double step = static_cast<double>(s.step);
    for (int64_t i = 0; i < kCount; ++i) {
      const double g = t.grad[i] * s.gradient_scale;
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(s.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(s.beta2, step));
      p[i] = p[i] * (1 - s.learning_rate * s.weight_decay) -
             s.learning_rate * m_hat / (std::sqrt(v_hat) + s.epsilon);
    }
  }
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    difference += (t.param[i] - p[i]) * (t.param[i] - p[i]);
    norm += p[i] * p[i];
  }
  // 20 steps of at most two roundings of 2^-24 of the value each, with room.
  EXPECT_LT(std::sqrt(difference / norm), 1e-6);
}

TEST(AdamWTest, NaNAndInfinityPassThrough) {
  Tensors in = RandomTensors(9);
  in.grad[3] = std::numeric_limits<float>::quiet_NaN();
  in.grad[5] = std::numeric_limits<float>::infinity();
  Tensors out = Fresh();
  AdamWUpdate(kSettings, Buffers(in, out), kCount);
  EXPECT_TRUE(std::isnan(out.param[3]));
  EXPECT_TRUE(std::isnan(out.param[5]));  // inf / inf.
  EXPECT_TRUE(std::isinf(out.exp_avg_sq[5]));
  EXPECT_TRUE(std::isfinite(out.param[4]));
}

}  // namespace
}  // namespace gemini::client
