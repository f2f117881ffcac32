// SPDX-License-Identifier: Apache-2.0
// That repeated traces equal whole ones is in traced_step_test.cc.
#include "trainer/forecast/repeated_blocks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;

ModelSpec SpecOf(const std::vector<size_t>& kinds) {
  ModelSpec spec;
  spec.num_blocks = static_cast<int64_t>(kinds.size());
  spec.kinds.resize(8);
  spec.kind_of_block = kinds;
  return spec;
}

TEST(RepeatedBlocksTest, BlocksOfOneKindAreLeftOutButFour) {
  ModelSpec spec;
  spec.num_blocks = 80;
  const auto found = FindRepeatedBlocks(spec);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->first, 0);
  EXPECT_EQ(found->period, 1);
  EXPECT_EQ(found->left_out, 76);
  EXPECT_EQ(WithFewerBlocks(spec, *found).num_blocks, 4);
}

TEST(RepeatedBlocksTest, FewBlocksAreAllRun) {
  ModelSpec spec;
  for (spec.num_blocks = 1; spec.num_blocks <= kKeptPeriods; ++spec.num_blocks) {
    EXPECT_FALSE(FindRepeatedBlocks(spec).has_value()) << spec.num_blocks;
  }
  EXPECT_FALSE(FindRepeatedBlocks(SpecOf({0, 1, 2, 3, 4, 5, 6, 7})).has_value());
}

TEST(RepeatedBlocksTest, APeriodOfSeveralKindsIsFoundBehindOthers) {
  // A first block of its own, then two of one kind and one of another, and a rest.
  std::vector<size_t> kinds = {3};
  for (int i = 0; i < 7; ++i) kinds.insert(kinds.end(), {0, 0, 1});
  kinds.insert(kinds.end(), {0, 0});
  const ModelSpec spec = SpecOf(kinds);
  const auto found = FindRepeatedBlocks(spec);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->first, 1);
  EXPECT_EQ(found->period, 3);
  EXPECT_EQ(found->left_out, 3);
  EXPECT_THAT(WithFewerBlocks(spec, *found).kind_of_block,
              ElementsAre(3, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0));
}

TEST(RepeatedBlocksTest, BlocksWithExpertsAreNoneWithout) {
  ModelSpec spec;
  spec.num_blocks = 12;
  spec.experts.emplace();
  spec.has_experts = {false, false, false, true, true, true, true, true, true, true, true, false};
  const auto found = FindRepeatedBlocks(spec);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->first, 3);
  EXPECT_EQ(found->left_out, 4);
  const ModelSpec fewer = WithFewerBlocks(spec, *found);
  EXPECT_EQ(fewer.has_experts,
            std::vector<bool>({false, false, false, true, true, true, true, false}));
}

}  // namespace
}  // namespace gemini::trainer
