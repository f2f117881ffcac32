// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/exact_sum.h"

#include <vector>

#include "gemini/half_float.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;

template <typename Stored>
std::vector<Stored> Fold(SumType type, const std::vector<Stored>& parts, int64_t num_parts) {
  const auto elements = static_cast<int64_t>(parts.size()) / num_parts;
  std::vector<Stored> sum(static_cast<size_t>(elements));
  FoldSum(type, reinterpret_cast<const std::byte*>(parts.data()), num_parts, elements,
          reinterpret_cast<std::byte*>(sum.data()));
  return sum;
}

// 2^24 + 1 is no float, so (2^24 + 1) + 1 is 2^24 and (1 + 1) + 2^24 is not.
TEST(ExactSumTest, PartsAreAddedFromTheFirstOn) {
  constexpr float kLarge = 1 << 24;
  EXPECT_THAT(Fold<float>(SumType::kFp32, {kLarge, 1, 1, 1, 1, kLarge}, 3),
              ElementsAre(kLarge, kLarge + 2));
}

TEST(ExactSumTest, SixteenBitsAreRoundedOnce) {
  // In bf16 1 + 2^-8 is a tie that rounds to 1, each time; in fp32 two of them make 1 + 2^-7.
  const uint16_t small = Bf16Of(1.0f / 256);
  EXPECT_THAT(Fold<uint16_t>(SumType::kBf16, {Bf16Of(1), small, small}, 3),
              ElementsAre(Bf16Of(1 + 1.0f / 128)));
  // fp16 ends at 65504; the sum comes back below it.
  const uint16_t large = Fp16Of(65504), less = Fp16Of(-65504);
  EXPECT_THAT(Fold<uint16_t>(SumType::kFp16, {large, large, less}, 3), ElementsAre(large));
}

TEST(ExactSumTest, DoublesStayDoubles) {
  EXPECT_THAT(Fold<double>(SumType::kFp64, {1, 0x1p-50, 0x1p-50}, 3), ElementsAre(1 + 0x1p-49));
}

TEST(ExactSumTest, RunsOfAnyLengthAreWhole) {
  for (const int64_t elements : {0, 1, 2047, 2048, 2049, 5000}) {
    std::vector<float> parts;
    for (int64_t i = 0; i < 2 * elements; ++i) parts.push_back(static_cast<float>(i));
    const std::vector<float> sum = Fold(SumType::kFp32, parts, 2);
    for (int64_t i = 0; i < elements; ++i) {
      ASSERT_EQ(sum[static_cast<size_t>(i)], static_cast<float>(2 * i + elements));
    }
  }
}

TEST(ExactSumTest, TheSumMayBeTheFirstPart) {
  std::vector<float> parts = {1, 2, 10, 20};
  auto* const bytes = reinterpret_cast<std::byte*>(parts.data());
  FoldSum(SumType::kFp32, bytes, 2, 2, bytes);
  EXPECT_THAT(parts, ElementsAre(11, 22, 10, 20));
}

}  // namespace
}  // namespace gemini::trainer
