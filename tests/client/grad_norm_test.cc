// SPDX-License-Identifier: Apache-2.0
#include "client/grad_norm.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAreArray;

std::vector<float> RandomTensor(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> tensor(size);
  for (float& value : tensor) value = normal(random);
  return tensor;
}

TEST(GradNormTest, PiecesAtBlockBoundariesGiveTheBlocksOfTheWholeTensor) {
  const std::vector<float> tensor = RandomTensor(10 * kNormBlockElements + 77, 1);
  std::vector<double> whole;
  AppendBlockSquares(tensor, whole);
  ASSERT_EQ(whole.size(), 11);
  std::vector<double> pieces;
  const absl::Span<const float> all(tensor);
  AppendBlockSquares(all.subspan(0, kNormBlockElements), pieces);
  AppendBlockSquares(all.subspan(kNormBlockElements, 6 * kNormBlockElements), pieces);
  AppendBlockSquares(all.subspan(7 * kNormBlockElements), pieces);
  EXPECT_THAT(pieces, ElementsAreArray(whole));
}

TEST(GradNormTest, ABlockIsSummedInEightLanesInOrder) {
  const std::vector<float> tensor = RandomTensor(kNormBlockElements - 5, 2);
  std::vector<double> squares;
  AppendBlockSquares(tensor, squares);
  std::vector<double> lanes(kNormLanes, 0.0);
  for (size_t i = 0; i < tensor.size(); ++i) {
    volatile double square = double{tensor[i]} * double{tensor[i]};
    lanes[i % kNormLanes] += square;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  EXPECT_THAT(squares, ElementsAreArray({sum}));
}

TEST(GradNormTest, BlocksAreSummedInOrder) {
  // In the other order the small ones would not be lost.
  const std::vector<double> squares = {1e17, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(NormOf(squares), std::sqrt(1e17));
  EXPECT_EQ(NormOf({}), 0);
}

TEST(GradNormTest, NaNAndInfinityShowInTheNorm) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> tensor = RandomTensor(3000, 3);
    tensor[1500] = bad;
    std::vector<double> squares;
    AppendBlockSquares(tensor, squares);
    EXPECT_FALSE(std::isfinite(NormOf(squares)));
  }
}

TEST(GradNormTest, ClipCoefficientIsThatOfTorch) {
  EXPECT_EQ(ClipCoefficient(5, 0), 1);
  EXPECT_EQ(ClipCoefficient(0.5, 1), 1);
  EXPECT_EQ(ClipCoefficient(0, 1), 1);
  EXPECT_EQ(ClipCoefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_TRUE(std::isnan(ClipCoefficient(std::nan(""), 1)));
}

}  // namespace
}  // namespace gemini::client
