// SPDX-License-Identifier: Apache-2.0
#include "gemini/split_float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

// Patterns of the upper half of the range [first << 16, last << 16) that do not come back, or whose
// high half is not the rounded value. Compiled to vectors (tests/gemini/CMakeLists.txt).
int64_t CountWrong(uint32_t first, uint32_t last) {
  int64_t wrong = 0;
  for (uint32_t upper = first; upper < last; ++upper) {
    uint32_t wrong_here = 0;
    for (uint32_t lower = 0; lower < 0x10000; ++lower) {
      const uint32_t bits = upper << 16 | lower;
      const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
      const SplitFloat split = SplitOf(std::bit_cast<float>(bits));
      const uint32_t joined = std::bit_cast<uint32_t>(JoinOf(split));
      const uint32_t rounded = (bits + 0x8000) >> 16;
      wrong_here += joined != (is_nan ? kSplitNaN : bits);
      wrong_here += split.high != (is_nan ? 0x7fc0 : rounded);
    }
    wrong += wrong_here;
  }
  return wrong;
}

TEST(SplitFloatTest, SplitExact) {
  int64_t wrong[2] = {};
  std::thread positive([&] { wrong[0] = CountWrong(0, 0x8000); });
  wrong[1] = CountWrong(0x8000, 0x10000);
  positive.join();
  EXPECT_EQ(wrong[0], 0);
  EXPECT_EQ(wrong[1], 0);
}

TEST(SplitFloatTest, TiesGoAwayFromZero) {
  const float tie = std::bit_cast<float>(uint32_t{0x3f808000});  // Between 1 and the next bf16.
  EXPECT_EQ(SplitOf(tie), (SplitFloat{0x3f81, -0x8000}));
  EXPECT_EQ(SplitOf(-tie), (SplitFloat{0xbf81, -0x8000}));
}

TEST(SplitFloatTest, ZerosAndInfinitiesHaveNoLowHalf) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SplitOf(0.0f), (SplitFloat{0, 0}));
  EXPECT_EQ(SplitOf(-0.0f), (SplitFloat{0x8000, 0}));
  EXPECT_EQ(SplitOf(kInfinity), (SplitFloat{0x7f80, 0}));
  EXPECT_EQ(SplitOf(-kInfinity), (SplitFloat{0xff80, 0}));
}

TEST(SplitFloatTest, WhatRoundsToInfinityComesBackFinite) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(SplitOf(kLargest), (SplitFloat{0x7f80, -1}));
  EXPECT_EQ(JoinOf(SplitOf(kLargest)), kLargest);
  const float last_finite = std::bit_cast<float>(uint32_t{0x7f7f7fff});
  EXPECT_EQ(SplitOf(last_finite).high, 0x7f7f);
}

TEST(SplitFloatTest, EveryNaNHasANaNAsItsHighHalf) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_EQ(SplitOf(std::bit_cast<float>(bits)), (SplitFloat{0x7fc0, 0}));
  }
}

}  // namespace
}  // namespace gemini
