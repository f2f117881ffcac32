// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/element_values.h"

#include <bit>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/half_float.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr int64_t kChunkBytes = 4096;

// Random values with all their bits, in chunks of their own.
class ElementValuesTest : public ::testing::TestWithParam<std::tuple<ElementType, bool>> {
 protected:
  ElementValuesTest() {
    const size_t chunks = is_moment_                       ? element_ == ElementType::kFp32 ? 1 : 2
                          : element_ == ElementType::kFp32 ? 1
                          : element_ == ElementType::kBf16 ? 2
                                                           : 3;
    memory_.assign(chunks, std::vector<std::byte>(kChunkBytes, std::byte{0xa5}));
    for (std::vector<std::byte>& chunk : memory_) at_.chunks.push_back(chunk.data());
    std::normal_distribution<float> normal;
    for (float& value : values_) value = normal(random_);
  }
  std::vector<float> Load(int64_t first, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    LoadValues(at_, first, absl::MakeSpan(values));
    return values;
  }

  const ElementType element_ = std::get<0>(GetParam());
  const bool is_moment_ = std::get<1>(GetParam());
  const int64_t count_ = kChunkBytes / ElementBytes(element_);
  std::mt19937_64 random_{7};
  std::vector<std::vector<std::byte>> memory_;
  ValueChunks at_ = {.format = {.element = element_},
                     .value = is_moment_ ? ChunkKind::kExpAvg : ChunkKind::kParam,
                     .chunk_bytes = kChunkBytes};
  std::vector<float> values_ = std::vector<float>(static_cast<size_t>(count_));
};

INSTANTIATE_TEST_SUITE_P(Formats, ElementValuesTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElementTypes),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return absl::StrCat(ElementTypeName(std::get<0>(test.param)),
                                               std::get<1>(test.param) ? "_moment" : "_param");
                         });

TEST_P(ElementValuesTest, ValuesComeBackWithAllBits) {
  StoreValues(at_, 0, values_);
  EXPECT_EQ(Load(0, count_), values_);
}

// Both ends lie in different chunks where a value fills two of them.
TEST_P(ElementValuesTest, ARangeAcrossTheMiddleChangesNothingElse) {
  StoreValues(at_, 0, values_);
  const std::vector<float> fresh = {1.5f, -2.5f, 0.1f, 1e-20f, 3e20f, -0.7f};
  const int64_t first = count_ / 2 - 3;
  StoreValues(at_, first, fresh);
  EXPECT_EQ(Load(first, 6), fresh);
  std::copy(fresh.begin(), fresh.end(), values_.begin() + first);
  EXPECT_EQ(Load(0, count_), values_);
}

TEST_P(ElementValuesTest, WithoutAMasterASixteenBitValueIsTheNearestNumber) {
  at_.value = ChunkKind::kParam;
  at_.chunks.resize(1);
  StoreValues(at_, 0, values_);
  const std::vector<float> read = Load(0, count_);
  for (size_t i = 0; i < read.size(); ++i) {
    const float expected = element_ == ElementType::kBf16   ? FloatOfBf16(Bf16Of(values_[i]))
                           : element_ == ElementType::kFp16 ? FloatOfFp16(Fp16Of(values_[i]))
                                                            : values_[i];
    ASSERT_EQ(read[i], expected) << i;
  }
}

}  // namespace
}  // namespace gemini::client
