// SPDX-License-Identifier: Apache-2.0
#include "trainer/half_float.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

// The two formats as one test sees them.
struct Format {
  const char* name;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  uint16_t infinity;
};
constexpr Format kFloat16 = {"fp16", Float32FromFloat16, Float16FromFloat32, 0x7c00};
constexpr Format kBfloat16 = {"bf16", Float32FromBfloat16, Bfloat16FromFloat32, 0x7f80};

class HalfFloatTest : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, HalfFloatTest, ::testing::Values(kFloat16, kBfloat16),
                         [](const auto& format) { return format.param.name; });

TEST_P(HalfFloatTest, EveryNumberComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = GetParam().to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7fffu, GetParam().infinity);
      EXPECT_TRUE(std::isnan(GetParam().to_float(GetParam().from_float(value)))) << bits;
    } else {
      ASSERT_EQ(GetParam().from_float(value), bits);
    }
  }
}

TEST_P(HalfFloatTest, NumbersGrowWithTheirBits) {
  for (uint16_t bits = 0; bits < GetParam().infinity; ++bits) {
    const float value = GetParam().to_float(bits);
    const float next = GetParam().to_float(static_cast<uint16_t>(bits + 1));
    ASSERT_LT(value, next) << bits;
  }
  EXPECT_EQ(GetParam().to_float(0), 0.0f);
  EXPECT_EQ(GetParam().to_float(GetParam().infinity), std::numeric_limits<float>::infinity());
}

// Rounding is right everywhere if it is right at, just below and just above each half-way point.
TEST_P(HalfFloatTest, RoundsToNearestWithTiesToEven) {
  for (uint16_t bits = 0; bits + 1 < GetParam().infinity; ++bits) {
    const float low = GetParam().to_float(bits);
    const float high = GetParam().to_float(static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    const uint16_t even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(GetParam().from_float(middle), even) << bits;
    ASSERT_EQ(GetParam().from_float(std::nextafterf(middle, low)), bits) << bits;
    ASSERT_EQ(GetParam().from_float(std::nextafterf(middle, high)), bits + 1) << bits;
    ASSERT_EQ(GetParam().from_float(-middle), even | 0x8000) << bits;
  }
}

TEST(HalfFloatEdgeTest, KnownValuesHaveTheirKnownBits) {
  EXPECT_EQ(Float16FromFloat32(1.0f), 0x3c00);
  EXPECT_EQ(Float16FromFloat32(65504.0f), 0x7bff);
  EXPECT_EQ(Float16FromFloat32(65519.996f), 0x7bff);
  EXPECT_EQ(Float16FromFloat32(65520.0f), 0x7c00);
  EXPECT_EQ(Float16FromFloat32(0x1p-24f), 0x0001);
  EXPECT_EQ(Float16FromFloat32(0x1p-25f), 0x0000);
  EXPECT_EQ(Bfloat16FromFloat32(1.0f), 0x3f80);
  EXPECT_EQ(Bfloat16FromFloat32(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(HalfFloatEdgeTest, SpansAreConvertedElementByElement) {
  const std::vector<float> values = {1.0f, -2.5f, 0.0f};
  std::vector<uint16_t> halves(3);
  std::vector<float> back(3);
  ConvertFloat32ToFloat16(values, absl::MakeSpan(halves));
  ConvertFloat16ToFloat32(halves, absl::MakeSpan(back));
  EXPECT_EQ(back, values);
  ConvertFloat32ToBfloat16(values, absl::MakeSpan(halves));
  ConvertBfloat16ToFloat32(halves, absl::MakeSpan(back));
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace gemini::trainer
