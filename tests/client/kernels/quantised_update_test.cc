// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/quantised_update.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/update/update_memory.h"

namespace gemini::client {
namespace {

constexpr int64_t kBlock = kQuantisationBlockElements;
constexpr int64_t kCount = 5 * kBlock + 77;

// Codes and scales of both moments.
struct Moments {
  std::vector<uint8_t> codes[2] = {std::vector<uint8_t>(kCount), std::vector<uint8_t>(kCount)};
  std::vector<float> scales[2] = {std::vector<float>(6), std::vector<float>(6)};
  bool operator==(const Moments&) const = default;
};

QuantisedMoment Stream(const Moments& from, Moments& to, int which, int64_t begin) {
  return {from.codes[which].data() + begin, from.scales[which].data() + begin / kBlock,
          to.codes[which].data() + begin, to.scales[which].data() + begin / kBlock};
}
QuantisedMoments Streams(const Moments& from, Moments& to, int64_t begin = 0) {
  return {Stream(from, to, 0, begin), Stream(from, to, 1, begin)};
}

// The codes of random moments.
Moments RandomMoments(const std::vector<ElementBits>& values) {
  Moments moments;
  std::vector<float> of[2];
  for (const ElementBits& value : values) {
    of[0].push_back(std::bit_cast<float>(value.exp_avg));
    of[1].push_back(std::bit_cast<float>(value.exp_avg_sq));
  }
  for (int which = 0; which < 2; ++which) {
    QuantiseMoment(static_cast<MomentCode>(which), of[which].data(), 0, kCount, nullptr,
                   moments.codes[which].data(), moments.scales[which].data());
  }
  return moments;
}

using Formats = std::tuple<OptimizerKind, ElementType>;

class QuantisedUpdateTest : public ::testing::TestWithParam<Formats> {
 protected:
  UpdateSettings settings() const { return SettingsOf(std::get<0>(GetParam())); }
  bool has_second_moment() const { return HasSecondMoment(settings().kind); }
  UpdateMemory Memory(const std::vector<ElementBits>& values) const {
    return UpdateMemory(std::get<1>(GetParam()), ElementType::kBf16, values);
  }
};

INSTANTIATE_TEST_SUITE_P(All, QuantisedUpdateTest,
                         ::testing::Combine(::testing::Values(OptimizerKind::kAdamW,
                                                              OptimizerKind::kAdam,
                                                              OptimizerKind::kSgd),
                                            ::testing::ValuesIn(kAllElementTypes)));

TEST_P(QuantisedUpdateTest, IsTheFp32UpdateBetweenTwoConversions) {
  const std::vector<ElementBits> values = RandomElements(kCount, 1);
  const Moments old = RandomMoments(values);
  UpdateMemory memory = Memory(values);
  Moments fresh;
  UpdateElementsQuantised(settings(), memory.OutOfPlace(), Streams(old, fresh), 0, kCount);

  std::vector<float> moments[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  for (int which = 0; which < 2; ++which) {
    DequantiseMoment(static_cast<MomentCode>(which), old.codes[which].data(),
                     old.scales[which].data(), kCount, moments[which].data());
  }
  UpdateMemory expected = Memory(values);
  UpdateStreams streams = expected.OutOfPlace();
  streams.exp_avg = streams.new_exp_avg = moments[0].data();
  streams.exp_avg_sq = streams.new_exp_avg_sq = moments[1].data();
  UpdateElements(settings(), streams, kCount);
  EXPECT_TRUE(memory.WrittenOutOfPlace() == expected.WrittenOutOfPlace());
  for (int which = 0; which < (has_second_moment() ? 2 : 1); ++which) {
    std::vector<uint8_t> codes(kCount);
    std::vector<float> scales(6);
    QuantiseMoment(static_cast<MomentCode>(which), moments[which].data(), 0, kCount, nullptr,
                   codes.data(), scales.data());
    EXPECT_EQ(fresh.codes[which], codes);
    EXPECT_EQ(fresh.scales[which], scales);
  }
}

TEST_P(QuantisedUpdateTest, CallsPathsAndPlaceChangeNoBit) {
  const std::vector<ElementBits> values = RandomElements(kCount, 2);
  const Moments old = RandomMoments(values);
  for (const StochasticRounding* const rounding :
       {static_cast<const StochasticRounding*>(nullptr),
        static_cast<const StochasticRounding*>(new StochasticRounding{.seed = 9, .step = 7})}) {
    UpdateMemory whole = Memory(values);
    Moments whole_moments;
    UpdateElementsQuantised(settings(), whole.OutOfPlace(), Streams(old, whole_moments), 0, kCount,
                            rounding);
    for (const VectorPath path : kAllVectorPaths) {
      if (!VectorPathAvailable(path)) continue;
      UpdateMemory apart = Memory(values), in_place = Memory(values);
      Moments apart_moments, in_place_moments = old;
      for (int64_t from = 0; from < kCount; from += 2 * kBlock) {
        const int64_t count = std::min(kCount - from, 2 * kBlock);
        UpdateElementsQuantisedThrough(path, settings(), apart.OutOfPlace(from),
                                       Streams(old, apart_moments, from), from, count, rounding);
        UpdateElementsQuantisedThrough(path, settings(), in_place.InPlace(from),
                                       Streams(in_place_moments, in_place_moments, from), from,
                                       count, rounding);
      }
      EXPECT_TRUE(apart.WrittenOutOfPlace() == whole.WrittenOutOfPlace());
      EXPECT_TRUE(apart_moments == whole_moments) << VectorPathName(path);
      EXPECT_EQ(in_place_moments.codes[0], whole_moments.codes[0]);
      EXPECT_EQ(in_place_moments.scales[0], whole_moments.scales[0]);
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(in_place.OldParam(i), whole.NewParam(i)) << i;
      if (has_second_moment()) {
        EXPECT_TRUE(in_place_moments == whole_moments);
      }
    }
    delete rounding;
  }
}

TEST_P(QuantisedUpdateTest, ANaNShowsInItsWholeBlockOfMoments) {
  std::vector<ElementBits> values = RandomElements(kCount, 3);
  values[kBlock + 5].grad = 0x7fc00000;
  UpdateMemory memory = Memory(values);
  Moments fresh;
  QuantisedMoments streams = Streams(fresh, fresh);
  streams.exp_avg.codes = nullptr;  // Zeros.
  streams.exp_avg_sq.codes = nullptr;
  UpdateElementsQuantised(settings(), memory.OutOfPlace(), streams, 0, kCount);
  EXPECT_TRUE(std::isnan(fresh.scales[0][1]));
  EXPECT_TRUE(std::isfinite(fresh.scales[0][0]));
  EXPECT_TRUE(std::isnan(memory.NewParam(kBlock + 5)));
  EXPECT_TRUE(std::isfinite(memory.NewParam(kBlock + 6)));
}

// Mean squared distances to the bottom of a noisy quadratic bowl, |p - target|^2, after 1,000
// steps.
struct Losses {
  double at_start = 0, fp32 = 0, quantised = 0;
};

// Gradients of each block differ in size by up to `decades` decades.
Losses Train(int decades) {
  std::mt19937_64 random(/*seed=*/4);
  std::normal_distribution<float> normal;
  std::vector<float> target(kCount), scale(kCount);
  for (float& value : target) value = normal(random);
  for (float& value : scale) {
    value = std::pow(10.0f, -static_cast<float>(random() % (100 * decades)) / 100);
  }
  std::vector<float> fp32(kCount, 0), quantised(kCount, 0), m(kCount, 0), v(kCount, 0),
      grad(kCount);
  Moments moments;
  for (int64_t step = 1; step <= 1'000; ++step) {
    const UpdateSettings settings = {
        .kind = OptimizerKind::kAdamW,
        .learning_rate = 1e-2 * (1 - static_cast<double>(step) / 1'001),
        .weight_decay = 0,
        .step = step};
    const auto streams = [&](std::vector<float>& param) {
      for (int64_t i = 0; i < kCount; ++i) {
        // The same noise for both.
        const auto noise = static_cast<float>((i * 7919 + step * 104729) % 1'000) / 500 - 1;
        grad[i] = scale[i] * (param[i] - target[i] + 0.3f * noise);
      }
      return UpdateStreams{.param = param.data(), .grad = grad.data(), .new_param = param.data()};
    };
    UpdateStreams of_fp32 = streams(fp32);
    of_fp32.exp_avg = of_fp32.new_exp_avg = m.data();
    of_fp32.exp_avg_sq = of_fp32.new_exp_avg_sq = v.data();
    UpdateElements(settings, of_fp32, kCount);
    UpdateElementsQuantised(settings, streams(quantised), Streams(moments, moments), 0, kCount);
  }
  const auto loss = [&](const std::vector<float>& param) {
    double sum = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      sum += (double{param[i]} - target[i]) * (double{param[i]} - target[i]);
    }
    return sum / static_cast<double>(kCount);
  };
  return {loss(std::vector<float>(kCount, 0)), loss(fp32), loss(quantised)};
}

// The paper's claim in small.
TEST(QuantisedUpdateTrainingTest, ReachesTheBottomThatFp32MomentsReach) {
  const Losses losses = Train(/*decades=*/2);
  EXPECT_LT(losses.fp32, 0.001 * losses.at_start);
  EXPECT_LT(losses.quantised, 1.5 * losses.fp32);
}

// Beyond what 8 bits can tell apart it is slower, and stays so. If small second moments became
// zero, as in the paper, it would end at a hundred times its first loss.
TEST(QuantisedUpdateTrainingTest, DoesNotRunAwayWhereGradientsDifferByFourDecades) {
  const Losses losses = Train(/*decades=*/4);
  EXPECT_LT(losses.fp32, 0.001 * losses.at_start);
  EXPECT_LT(losses.quantised, 0.1 * losses.at_start);
}

}  // namespace
}  // namespace gemini::client
