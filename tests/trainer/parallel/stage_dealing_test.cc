// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/stage_dealing.h"

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec SpecOf(int64_t num_blocks, int64_t vocabulary) {
  ModelSpec spec;
  spec.vocab_size = vocabulary;
  spec.width = spec.embedding_width = 64;
  spec.num_blocks = num_blocks;
  spec.attention.num_heads = spec.attention.num_kv_heads = 4;
  spec.attention.head_size = 16;
  spec.feed_forward.width = 256;
  return spec;
}

std::vector<int64_t> CountsOf(const ModelStages& stages) {
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < stages.num_stages(); ++i) counts.push_back(stages.blocks(i).count());
  return counts;
}

// A block of width 64 multiplies 12 * 64 * 64 times, and 128 times for each token of half the
// sequence.
TEST(StageDealingTest, TheHeadCountsAsTheBlocksThatItTakesAsLongAs) {
  ASSERT_OK_AND_ASSIGN(ModelStages stages, DealStages(SpecOf(8, 8), 2, {.ranks = 2}, ""));
  EXPECT_THAT(CountsOf(stages), ElementsAre(4, 4));
  // As long as two blocks and a bit.
  ASSERT_OK_AND_ASSIGN(stages, DealStages(SpecOf(8, 2 * 12 * 64 + 8), 2, {.ranks = 2}, ""));
  EXPECT_THAT(CountsOf(stages), ElementsAre(5, 3));
  // With long sequences blocks take three times as long.
  ASSERT_OK_AND_ASSIGN(stages, DealStages(SpecOf(8, 2 * 12 * 64 + 8), 1536, {.ranks = 2}, ""));
  EXPECT_THAT(CountsOf(stages), ElementsAre(4, 4));
}

TEST(StageDealingTest, ExpertsCountAsOftenAsTokensChooseThem) {
  ModelSpec spec = SpecOf(4, 8);
  spec.experts = ExpertsSpec{.count = 64, .chosen = 8, .width = 256};
  spec.has_experts = {false, false, false, true};
  ASSERT_OK_AND_ASSIGN(const ModelStages stages, DealStages(spec, 2, {.ranks = 2}, ""));
  EXPECT_THAT(CountsOf(stages), ElementsAre(3, 1));
}

TEST(StageDealingTest, ASplitThatIsGivenIsTaken) {
  ASSERT_OK_AND_ASSIGN(const ModelStages stages,
                       DealStages(SpecOf(8, 8), 2, {.ranks = 2, .chunks = 2}, "1,2,3,2"));
  EXPECT_THAT(CountsOf(stages), ElementsAre(1, 2, 3, 2));
  EXPECT_EQ(stages.num_ranks(), 2);
}

TEST(StageDealingTest, WhatHasNotEnoughBlocksIsRefused) {
  EXPECT_THAT(DealStages(SpecOf(3, 8), 2, {.ranks = 2, .chunks = 2}, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 stages")));
  EXPECT_THAT(DealStages(SpecOf(3, 8), 2, {.ranks = 2}, "2,2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2,2")));
}

}  // namespace
}  // namespace gemini::trainer
