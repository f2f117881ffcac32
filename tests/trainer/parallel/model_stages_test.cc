// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_stages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;

TEST(ModelStagesTest, OneRankHasAllBlocks) {
  const ModelStages stages(5);
  EXPECT_EQ(stages.num_stages(), 1);
  EXPECT_EQ(stages.blocks(0).begin, 0);
  EXPECT_EQ(stages.blocks(0).end, 5);
  EXPECT_EQ(stages.RankOfBlock(4), 0);
}

TEST(ModelStagesTest, StagesGoRoundTheRanks) {
  const ModelStages stages(2, {1, 3, 2, 1});
  EXPECT_EQ(stages.num_ranks(), 2);
  EXPECT_EQ(stages.num_chunks(), 2);
  EXPECT_EQ(stages.StageOf(/*rank=*/1, /*chunk=*/0), 1);
  EXPECT_EQ(stages.StageOf(/*rank=*/0, /*chunk=*/1), 2);
  EXPECT_EQ(stages.RankOf(3), 1);
  EXPECT_EQ(stages.blocks(1).begin, 1);
  EXPECT_EQ(stages.blocks(1).count(), 3);
  std::vector<int64_t> ranks;
  for (int64_t block = 0; block < 7; ++block) ranks.push_back(stages.RankOfBlock(block));
  EXPECT_THAT(ranks, ElementsAre(0, 1, 1, 1, 0, 0, 1));
}

}  // namespace
}  // namespace gemini::trainer
