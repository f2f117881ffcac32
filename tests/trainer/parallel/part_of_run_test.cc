// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/part_of_run.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/communicator_dry.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

TEST(LayoutOfTest, RanksAreLaidOutAsTheKeysSay) {
  RunConfig config;
  ASSERT_OK_AND_ASSIGN(const RankLayout apart, LayoutOf(config, 8));
  EXPECT_EQ(apart.num_data(), 8);
  config.tensor = "2.5d";
  config.tensor_size = 8;
  config.tensor_depth = 2;
  ASSERT_OK_AND_ASSIGN(const RankLayout grid, LayoutOf(config, 16));
  EXPECT_EQ(grid.grid().mode(), policies::TensorMode::k2Point5d);
  EXPECT_EQ(grid.grid().size(policies::TensorAxis::kK), 2);
  EXPECT_EQ(grid.CoordinatesOf(13), "dp 1, tp 5 (i 0, j 1, k 1)");
  config.rank_order = "tp,dp,pp,sp";
  ASSERT_OK_AND_ASSIGN(const RankLayout turned, LayoutOf(config, 16));
  EXPECT_EQ(turned.CoordinatesOf(11), "dp 1, tp 5 (i 0, j 1, k 1)");
}

TEST(LayoutOfTest, RanksArePipelinesAsTheKeysSay) {
  RunConfig config;
  config.pipeline = 2;
  config.tensor = "1d";
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 8));
  EXPECT_EQ(layout.CoordinatesOf(6), "pp 1, tp 2");
}

TEST(LayoutOfTest, RanksShareSequencesAsTheKeysSay) {
  RunConfig config;
  config.tensor = "1d";
  config.tensor_size = 2;
  config.sequence_parallel = "megatron";
  ASSERT_OK_AND_ASSIGN(const RankLayout line, LayoutOf(config, 4));
  EXPECT_EQ(line.sequence().sharing, SequenceSharing::kMegatron);
  EXPECT_FALSE(line.sequence().zigzag);
  config.sequence_parallel = "ring";
  ASSERT_OK_AND_ASSIGN(const RankLayout ring, LayoutOf(config, 8));
  EXPECT_EQ(ring.sequence().sharing, SequenceSharing::kRing);
  EXPECT_TRUE(ring.sequence().zigzag);
  EXPECT_EQ(ring.parts_of_hidden(), 4);
  EXPECT_EQ(ring.grid().num_ranks(), 2);
  config.sequence_layout = "contiguous";
  ASSERT_OK_AND_ASSIGN(const RankLayout contiguous, LayoutOf(config, 8));
  EXPECT_FALSE(contiguous.sequence().zigzag);
  config.sequence_layout = "zigzag";
  config.sequence_parallel = "ulysses";
  config.sequence_size = 2;
  ASSERT_OK_AND_ASSIGN(const RankLayout ulysses, LayoutOf(config, 8));
  EXPECT_EQ(ulysses.sequence().sharing, SequenceSharing::kUlysses);
  EXPECT_FALSE(ulysses.sequence().zigzag);
  EXPECT_EQ(ulysses.num_data(), 2);
}

TEST(LayoutOfTest, SizesThatDoNotDivideTheRanksNameTheirKeys) {
  const auto refused = [](RunConfig config, int64_t num_ranks, const char* message) {
    EXPECT_THAT(LayoutOf(config, num_ranks),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  RunConfig config;
  config.tensor = "1d";
  config.tensor_size = 2;
  config.sequence_parallel = "ring";
  config.sequence_size = 3;
  refused(config, 8,
          "--pipeline, --tensor-size, --sequence-size: 8 ranks do not divide into pp 1 x sp 3 x tp "
          "2 = 6");
  config = {};
  config.pipeline = 3;
  refused(config, 8, "8 ranks do not divide into pp 3 x sp 1 x tp 1 = 3: start 6 or 9 ranks");
  config = {};
  config.tensor = "2d";
  refused(config, 6, "--tensor 2d: 2d takes q^2 ranks, which 6 are not: use 4 or 9");
  config.tensor = "3d";
  refused(config, 4, "--tensor 3d: 3d takes q^3 ranks, which 4 are not: use 1 or 8");
  config.tensor = "2.5d";
  config.tensor_depth = 2;
  refused(config, 4, "--tensor 2.5d: 2.5d of depth 2 takes 2 q^2 ranks, which 4 are not: use 2");
}

ModelSpec SmallSpec() {
  return ParseHfConfig(R"({"model_type":"llama","vocab_size":64,"max_position_embeddings":16,
                           "hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,
                           "num_attention_heads":4,"num_key_value_heads":4})",
                       "config")
      ->spec;
}

TEST(UnitOptionsOfTest, UnitsAreCutAndAddedUpAsTheKeysSay) {
  RunConfig config;
  EXPECT_EQ(UnitOptionsOf(config).division, UnitDivision::kShards);
  EXPECT_EQ(UnitOptionsOf(config).sync, GradientSync::kEach);
  config.zero = "0";
  config.accumulate = 2;
  EXPECT_EQ(UnitOptionsOf(config).division, UnitDivision::kReplicas);
  EXPECT_EQ(UnitOptionsOf(config).sync, GradientSync::kLast);
  config.zero = "1";
  config.moments = "8bit";
  EXPECT_EQ(UnitOptionsOf(config).division, UnitDivision::kShardsAndWhole);
  EXPECT_EQ(UnitOptionsOf(config).block_elements, ShardBlockElements(MomentFormat::k8Bit));
}

TEST(PartOfRunTest, ARankOfAPipelineHasItsStagesAndARunnerOfThem) {
  RunConfig config;
  config.batch = 1;
  config.sequence = 16;
  config.accumulate = 3;
  config.pipeline = 2;
  config.pipeline_split = "1,3";
  const ModelSpec spec = SmallSpec();
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 2));
  ASSERT_OK_AND_ASSIGN(const ModelStages stages, StagesOfRun(spec, config, layout));
  CommunicatorDry communicator(/*rank=*/1, /*num_ranks=*/2);
  ASSERT_OK_AND_ASSIGN(const PartOfRun part,
                       MakePartOfRun(spec, config, layout, stages, communicator, torch::kCPU));
  EXPECT_FALSE(part.model->HasUnit(1, 1));
  EXPECT_TRUE(part.model->HasUnit(1, 2));
  ASSERT_NE(part.stage, nullptr);
  EXPECT_EQ(part.stage->tasks().size(), 6);  // Forward and backward of each micro-batch.
}

TEST(PartOfRunTest, WithoutAPipelineTheModelRunsAsItIs) {
  RunConfig config;
  config.batch = 1;
  config.sequence = 16;
  config.recompute = true;
  const ModelSpec spec = SmallSpec();
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 2));
  ASSERT_OK_AND_ASSIGN(const ModelStages stages, StagesOfRun(spec, config, layout));
  CommunicatorDry communicator(/*rank=*/0, /*num_ranks=*/2);
  ASSERT_OK_AND_ASSIGN(const PartOfRun part,
                       MakePartOfRun(spec, config, layout, stages, communicator, torch::kCPU));
  EXPECT_EQ(part.stage, nullptr);
  EXPECT_TRUE(part.model->recompute());
}

TEST(StagesOfRunTest, AModelThatDoesNotDivideIsRefused) {
  RunConfig config;
  config.batch = 1;
  config.sequence = 16;
  config.tensor = "1d";
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 3));
  EXPECT_THAT(StagesOfRun(SmallSpec(), config, layout),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not divide by 3")));
}

}  // namespace
}  // namespace gemini::trainer
