// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/grad_norm.h"

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "client/kernels/update_loops.h"
#include "gemini/half_float.h"
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

// Widened to fp32, 16-bit elements have the squares that fp32 ones have.
TEST(GradNormTest, SixteenBitElementsGiveTheBlocksOfTheirValues) {
  for (const int64_t size : {1, 15, 16, 17, 1'024, 4'096, 9 * 1'024 + 77}) {
    const std::vector<float> tensor = RandomTensor(size, 4);
    std::vector<uint16_t> bf16, fp16;
    std::vector<float> bf16_values, fp16_values;
    for (const float value : tensor) {
      bf16.push_back(Bf16Of(value));
      bf16_values.push_back(FloatOfBf16(bf16.back()));
      fp16.push_back(Fp16Of(value * 1e-5f));  // Denormals among them.
      fp16_values.push_back(FloatOfFp16(fp16.back()));
    }
    std::vector<double> squares, expected;
    AppendBlockSquares(ElementType::kBf16, bf16.data(), size, squares);
    AppendBlockSquares(ElementType::kFp16, fp16.data(), size, squares);
    AppendBlockSquares(bf16_values, expected);
    AppendBlockSquares(fp16_values, expected);
    EXPECT_THAT(squares, ElementsAreArray(expected)) << size;
  }
}

// The overflow check of loss scaling: no finite gradient gives an infinite sum, no other a finite
// one.
TEST(GradNormTest, ASumIsFiniteIfAndOnlyIfEveryElementIs) {
  constexpr int64_t kSize = 5 * kNormBlockElements + 100;
  const auto is_finite = [](ElementType type, const void* values) {
    std::vector<double> squares;
    AppendBlockSquares(type, values, kSize, squares);
    return std::isfinite(NormOf(squares));
  };
  std::vector<float> fp32(kSize, std::numeric_limits<float>::max());
  std::vector<uint16_t> bf16(kSize, 0xff7f), fp16(kSize, 0x7bff);  // The largest of each.
  EXPECT_TRUE(is_finite(ElementType::kFp32, fp32.data()));
  EXPECT_TRUE(is_finite(ElementType::kBf16, bf16.data()));
  EXPECT_TRUE(is_finite(ElementType::kFp16, fp16.data()));
  for (int64_t i = 0; i < kSize; i += 7) {
    for (const uint16_t bad : std::initializer_list<uint16_t>{0x7f80, 0xff80, 0x7fc0, 0xff81}) {
      const uint16_t good = std::exchange(bf16[i], bad);
      ASSERT_FALSE(is_finite(ElementType::kBf16, bf16.data())) << i;
      bf16[i] = good;
    }
    for (const uint16_t bad : std::initializer_list<uint16_t>{0x7c00, 0xfc00, 0x7e00, 0xfc01}) {
      const uint16_t good = std::exchange(fp16[i], bad);
      ASSERT_FALSE(is_finite(ElementType::kFp16, fp16.data())) << i;
      fp16[i] = good;
    }
    const float good = std::exchange(fp32[i], -std::numeric_limits<float>::infinity());
    ASSERT_FALSE(is_finite(ElementType::kFp32, fp32.data())) << i;
    fp32[i] = good;
  }
}

TEST(GradNormTest, EveryPathGivesTheBitsOfThePortableOne) {
  constexpr int64_t kSize = 6 * kNormBlockElements + 517;
  std::mt19937_64 random(/*seed=*/5);
  std::vector<uint32_t> bits(kSize);  // Any bits: NaNs of all kinds, infinities, denormals.
  for (uint32_t& word : bits) word = static_cast<uint32_t>(random() >> 7);
  const std::vector<float> normal = RandomTensor(kSize, 6);
  for (const ElementType type : kAllElementTypes) {
    for (const void* const values :
         {static_cast<const void*>(bits.data()), static_cast<const void*>(normal.data())}) {
      std::vector<double> expected;
      for (const VectorPath path : kAllVectorPaths) {
        if (!VectorPathAvailable(path)) continue;
        std::vector<double> sums(7);
        LoopsOf(path).squares(type, values, kSize, sums.data());
        if (path == VectorPath::kPortable) expected = sums;
        EXPECT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(double)), 0)
            << ElementTypeName(type) << " " << VectorPathName(path);
      }
    }
  }
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
