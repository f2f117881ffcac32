// SPDX-License-Identifier: Apache-2.0
#include "gemini/half_float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value by its definition: sign, exponent and fraction.
double ValueOf(uint16_t bits, int fraction_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(HalfFloatTest, EveryFiniteFp16HasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float value = FloatOfFp16(static_cast<uint16_t>(bits));
    ASSERT_EQ(value, ValueOf(static_cast<uint16_t>(bits), 10, 15)) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    ASSERT_EQ(Fp16Of(value), bits);
  }
}

TEST(HalfFloatTest, EveryFiniteBf16HasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7f80) == 0x7f80) continue;
    const float value = FloatOfBf16(static_cast<uint16_t>(bits));
    ASSERT_EQ(value, ValueOf(static_cast<uint16_t>(bits), 7, 127)) << bits;
    ASSERT_EQ(Bf16Of(value), bits);
  }
}

// Between two neighbours: below the middle the lower one, above it the upper, in it the even one.
TEST(HalfFloatTest, RoundingIsToNearestTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = FloatOfFp16(bits);
    const float high = FloatOfFp16(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // Exact: fp32 has bits to spare.
    const uint16_t even = bits % 2 == 0 ? bits : static_cast<uint16_t>(bits + 1);
    ASSERT_EQ(Fp16Of(middle), even) << bits;
    ASSERT_EQ(Fp16Of(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(Fp16Of(std::nextafter(middle, kInfinity)), bits + 1) << bits;
    ASSERT_EQ(Fp16Of(-middle), even | 0x8000) << bits;
  }
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Bf16Of(std::bit_cast<float>(bits << 16 | 0x8000)), even) << bits;
    ASSERT_EQ(Bf16Of(std::bit_cast<float>(bits << 16 | 0x7fff)), bits) << bits;
    ASSERT_EQ(Bf16Of(std::bit_cast<float>(bits << 16 | 0x8001)), bits + 1) << bits;
  }
}

TEST(HalfFloatTest, WhatIsTooLargeBecomesInfinity) {
  EXPECT_EQ(Fp16Of(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(Fp16Of(65520.0f), 0x7c00);
  EXPECT_EQ(Fp16Of(-1e30f), 0xfc00);
  EXPECT_EQ(Fp16Of(kInfinity), 0x7c00);
  EXPECT_EQ(FloatOfFp16(0xfc00), -kInfinity);
  EXPECT_EQ(Bf16Of(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Bf16Of(-kInfinity), 0xff80);
  EXPECT_EQ(FloatOfBf16(0x7f80), kInfinity);
}

TEST(HalfFloatTest, NaNStaysNaN) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xffc00000u}) {
    EXPECT_TRUE(std::isnan(FloatOfFp16(Fp16Of(std::bit_cast<float>(bits)))));
    EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16Of(std::bit_cast<float>(bits)))));
  }
  EXPECT_TRUE(std::isnan(FloatOfFp16(0x7c01)));
  EXPECT_TRUE(std::isnan(FloatOfBf16(0xff81)));
}

}  // namespace
}  // namespace gemini
