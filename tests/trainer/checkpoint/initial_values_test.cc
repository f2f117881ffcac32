// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"

namespace gemini::trainer {
namespace {

std::vector<float> Normal(uint64_t seed, int64_t first, size_t count) {
  std::vector<float> values(count);
  FillNormal(seed, 0.02, first, absl::MakeSpan(values));
  return values;
}

TEST(InitialValuesTest, AreNormalAroundZero) {
  const std::vector<float> values = Normal(7, 0, 200'000);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  int64_t beyond_two = 0;
  for (const float value : values) {
    const double x = static_cast<double>(value) / 0.02;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.01);
  EXPECT_NEAR(fourth / count, 3, 0.1);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 0.002);
  // Neighbours say nothing about each other.
  double product = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    product += static_cast<double>(values[i - 1]) * static_cast<double>(values[i]) / 4e-4;
  }
  EXPECT_NEAR(product / count, 0, 0.01);
}

TEST(InitialValuesTest, PiecesAreThoseOfTheWholeAndSeedsDiffer) {
  const std::vector<float> whole = Normal(7, 0, 100);
  const std::vector<float> piece = Normal(7, 40, 20);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + 40));
  EXPECT_NE(Normal(8, 0, 100), whole);
}

}  // namespace
}  // namespace gemini::trainer
