// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/moment_quantisation.h"

#include <algorithm>
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

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int64_t kBlock = kQuantisationBlockElements;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Codes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Codes Quantise(MomentCode code, const std::vector<float>& values,
               const StochasticRounding* stochastic = nullptr, int64_t first_element = 0) {
  const auto count = static_cast<int64_t>(values.size());
  Codes result = {std::vector<uint8_t>(values.size()),
                  std::vector<float>(static_cast<size_t>((count + kBlock - 1) / kBlock))};
  QuantiseMoment(code, values.data(), first_element, count, stochastic, result.codes.data(),
                 result.scales.data());
  return result;
}

std::vector<float> Dequantise(MomentCode code, const Codes& codes) {
  std::vector<float> values(codes.codes.size());
  DequantiseMoment(code, codes.codes.data(), codes.scales.data(),
                   static_cast<int64_t>(values.size()), values.data());
  return values;
}

class MomentQuantisationTest : public ::testing::TestWithParam<MomentCode> {
 protected:
  // Over many magnitudes, so that all codes occur.
  std::vector<float> RandomMoments(int64_t count, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) {
      value = normal(random) * std::pow(10.0f, -static_cast<float>(random() % 80) / 10);
      if (GetParam() == MomentCode::kUnsigned) value *= value;
    }
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(All, MomentQuantisationTest,
                         ::testing::Values(MomentCode::kSigned, MomentCode::kUnsigned));

// Figure 2 of the paper: an exponent of zeros, an indicator bit, and a linear fraction of what is
// left.
TEST_P(MomentQuantisationTest, ValuesAreThoseOfTheTree) {
  const bool is_signed = GetParam() == MomentCode::kSigned;
  const std::array<float, 256>& values = CodeValues(GetParam());
  EXPECT_TRUE(std::ranges::is_sorted(values));
  for (int decade = 0; decade < 7; ++decade) {
    const double high = std::pow(10.0, -decade);
    const auto is_inside = [&](float value) { return value > high / 10 && value < high; };
    EXPECT_EQ(std::ranges::count_if(values, is_inside), (is_signed ? 64 : 128) >> decade) << decade;
  }
  EXPECT_EQ(values[255], 1);
  EXPECT_EQ(std::ranges::count(values, 0.0f), 1);
  EXPECT_FLOAT_EQ(values[254], is_signed ? 1 - 0.45f / 64 : 1 - 0.45f / 128);
  EXPECT_EQ(values[0], is_signed ? -values[254] : 0);
  EXPECT_FLOAT_EQ(*std::ranges::upper_bound(values, 0.0f), is_signed ? 0.55e-6f : 0.325e-6f);
}

// Against a search of all codes, for every border between two and for what is next to it.
TEST_P(MomentQuantisationTest, TheNearestCodeIsTakenAndOfTwoTheLower) {
  const std::array<float, 256>& table = CodeValues(GetParam());
  std::vector<float> values = {1, -0.0f, 0, 1e-30f, 1.5e-45f};
  if (GetParam() == MomentCode::kSigned) values.insert(values.end(), {-1, -1e-30f, -0.999f});
  for (int i = 0; i < 255; ++i) {
    const float middle = (table[i] + table[i + 1]) / 2;
    for (float x : {table[i], middle, std::nextafter(middle, -kInfinity),
                    std::nextafter(middle, kInfinity)}) {
      values.push_back(x);
    }
  }
  const std::vector<float> random = RandomMoments(kBlock, 1);
  for (const float value : random) values.push_back(value / 100);
  values.resize(kBlock);
  const Codes codes = Quantise(GetParam(), values);
  ASSERT_EQ(codes.scales[0], 1);
  for (int64_t i = 0; i < kBlock; ++i) {
    int nearest = 0;
    for (int code = 1; code < 256; ++code) {
      // Exact in double: no two fp32 values here are 2^29 apart.
      if (std::abs(double{table[code]} - values[i]) <
          std::abs(double{table[nearest]} - values[i])) {
        nearest = code;
      }
    }
    if (GetParam() == MomentCode::kUnsigned && values[i] > 0) nearest = std::max(nearest, 1);
    ASSERT_EQ(codes.codes[i], nearest) << values[i];
  }
}

TEST_P(MomentQuantisationTest, EveryCodeComesBackItself) {
  std::vector<float> values(CodeValues(GetParam()).begin(), CodeValues(GetParam()).end());
  for (float& value : values) value *= 0x1p-20f;
  const Codes codes = Quantise(GetParam(), values);
  EXPECT_EQ(codes.scales[0], 0x1p-20f);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(codes.codes[i], i);
  EXPECT_THAT(Dequantise(GetParam(), codes), ElementsAreArray(values));
}

TEST_P(MomentQuantisationTest, EachBlockHasTheScaleOfItsLargest) {
  std::vector<float> values(2 * kBlock + 10, 0.001f);
  values[kBlock + 7] = 5;
  values[2 * kBlock] = 0;
  const Codes codes = Quantise(GetParam(), values);
  EXPECT_THAT(codes.scales, ElementsAreArray({0.001f, 5.0f, 0.001f}));
  const std::vector<float> back = Dequantise(GetParam(), codes);
  EXPECT_EQ(back[0], 0.001f);
  EXPECT_EQ(back[kBlock + 7], 5);
  EXPECT_NEAR(back[kBlock], 0.001f, 0.0003f);
  EXPECT_EQ(back[2 * kBlock], 0);
}

TEST_P(MomentQuantisationTest, WhatWasDequantisedBecomesTheSameCodes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> values = RandomMoments(5 * kBlock + 100, seed);
    std::ranges::fill(values.begin() + kBlock, values.begin() + 2 * kBlock, 0.0f);
    const Codes codes = Quantise(GetParam(), values);
    const Codes again = Quantise(GetParam(), Dequantise(GetParam(), codes));
    ASSERT_THAT(again.codes, ElementsAreArray(codes.codes));
    ASSERT_THAT(again.scales, ElementsAreArray(codes.scales));
  }
}

TEST(MomentQuantisation, TheLargestValueKeepsItsBitsWhateverItsSign) {
  for (const std::vector<float>& values :
       {std::vector<float>{0.3f, -7.1f, 7.0f}, std::vector<float>{0.3f, 7.1f, -7.0f},
        std::vector<float>{-0.3f}}) {
    const Codes codes = Quantise(MomentCode::kSigned, values);
    const float largest =
        *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); });
    EXPECT_EQ(codes.scales[0], largest);
    EXPECT_THAT(Dequantise(MomentCode::kSigned, codes), ::testing::Contains(largest));
  }
  // Of two, the positive one; the other becomes the lowest code.
  EXPECT_THAT(Dequantise(MomentCode::kSigned, Quantise(MomentCode::kSigned, {-2, 2})),
              ElementsAreArray({2 * CodeValues(MomentCode::kSigned)[0], 2.0f}));
}

TEST_P(MomentQuantisationTest, ABlockOfZerosStaysZero) {
  const Codes codes = Quantise(GetParam(), std::vector<float>(100, 0));
  EXPECT_EQ(codes.scales[0], 0);
  EXPECT_THAT(Dequantise(GetParam(), codes), Each(0.0f));
  std::vector<float> from_null(100, 7);
  DequantiseMoment(GetParam(), nullptr, nullptr, 100, from_null.data());
  EXPECT_THAT(from_null, Each(0.0f));
}

TEST(MomentQuantisationZeroTest, NoSecondMomentAboveZeroBecomesZero) {
  const StochasticRounding rounding = {.seed = 1, .step = 1};
  const std::vector<float> values = {1, 1e-30f, 1e-8f, 0, -1e-9f};
  EXPECT_THAT(Quantise(MomentCode::kUnsigned, values).codes, ElementsAre(255, 1, 1, 0, 0));
  EXPECT_THAT(Quantise(MomentCode::kUnsigned, values, &rounding).codes,
              ElementsAre(255, 1, 1, 0, 0));
}

TEST_P(MomentQuantisationTest, NaNAndInfinityShowInTheirWholeBlockAndInNoOther) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    std::vector<float> values(2 * kBlock, 0.5f);
    values[kBlock + 100] = bad;
    const std::vector<float> back = Dequantise(GetParam(), Quantise(GetParam(), values));
    for (int64_t i = 0; i < 2 * kBlock; ++i) ASSERT_EQ(std::isnan(back[i]), i >= kBlock) << i;
  }
}

TEST_P(MomentQuantisationTest, StochasticRoundingDoesNotDependOnCalls) {
  const std::vector<float> values = RandomMoments(5 * kBlock + 33, 2);
  const StochasticRounding rounding = {.seed = 0x123456789abcdef, .step = 12};
  const Codes whole = Quantise(GetParam(), values, &rounding);
  std::vector<uint8_t> pieces;
  for (size_t begin = 0; begin < values.size(); begin += 2 * kBlock) {
    const size_t end = std::min<size_t>(values.size(), begin + 2 * kBlock);
    const std::vector<float> piece(values.begin() + begin, values.begin() + end);
    const Codes codes = Quantise(GetParam(), piece, &rounding, static_cast<int64_t>(begin));
    pieces.insert(pieces.end(), codes.codes.begin(), codes.codes.end());
  }
  EXPECT_EQ(pieces, whole.codes);
  const StochasticRounding other_step = {.seed = rounding.seed, .step = 13};
  const StochasticRounding other_seed = {.seed = rounding.seed + 1, .step = 12};
  EXPECT_NE(Quantise(GetParam(), values, &other_step).codes, whole.codes);
  EXPECT_NE(Quantise(GetParam(), values, &other_seed).codes, whole.codes);
}

TEST_P(MomentQuantisationTest, StochasticRoundingTakesANeighbourAndKeepsTheMean) {
  const std::array<float, 256>& table = CodeValues(GetParam());
  constexpr int64_t kSamples = 64 * kBlock;
  for (const float part : {0.0f, 0.1f, 0.5f, 0.8f}) {
    for (const int lower : {3, 60, 140, 200, 254}) {
      const float x = table[lower] + part * (table[lower + 1] - table[lower]);
      std::vector<float> values(kSamples, x);
      for (int64_t i = 0; i < kSamples; i += kBlock) values[i] = 1;  // The scale.
      const StochasticRounding rounding = {.seed = 5, .step = 1};
      const Codes codes = Quantise(GetParam(), values, &rounding);
      int64_t upper = 0;
      for (int64_t i = 0; i < kSamples; ++i) {
        if (i % kBlock == 0) continue;
        ASSERT_TRUE(codes.codes[i] == lower || codes.codes[i] == lower + 1);
        upper += codes.codes[i] == lower + 1;
      }
      const double fraction =
          static_cast<double>(upper) / static_cast<double>(kSamples - kSamples / kBlock);
      // Five standard deviations of 131,008 draws.
      EXPECT_NEAR(fraction, part, 5 * std::sqrt(0.25 / kSamples)) << lower;
    }
  }
}

}  // namespace
}  // namespace gemini::client
