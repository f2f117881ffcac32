// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/rank_job.h"

#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RankJobTest, OneRankNeedsNoLauncherAndNoLibrary) {
  ASSERT_OK_AND_ASSIGN(const RankJob job, JoinRanks({}));
  EXPECT_EQ(job.communicator, nullptr);
  EXPECT_TRUE(job.agreement().is_alone());
}

TEST(RankJobTest, TorchrunIsForGpus) {
  EXPECT_THAT(JoinRanks({.launcher = Launcher::kTorchrun, .num_ranks = 2}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("use mpirun")));
}

TEST(RankJobTest, AProgramWithoutTheModuleSaysWhereItWasLookedFor) {
  EXPECT_THAT(JoinRanks({.launcher = Launcher::kOpenMpi, .num_ranks = 2}).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("tests/gemini_mpi.so"), HasSubstr("libopenmpi-dev"))));
}

TEST(RankJobTest, RanksMustHaveOneConfigurationAndOneData) {
  RunThreadRanks(3, [](Communicator& me) {
    const RankAgreement ranks(me);
    RunConfig config;
    config.output = me.rank() == 1 ? "elsewhere" : "here";  // The first rank's is what counts.
    EXPECT_OK(CheckSameRun(ranks, config, "the data are these"));
    const absl::Status data =
        CheckSameRun(ranks, config, me.rank() == 2 ? "the data are those" : "the data are these");
    EXPECT_THAT(data, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("rank 2: the data are those here"),
                                     HasSubstr("the data are these in rank 0"))));
    EXPECT_TRUE(IsAgreed(data));
    if (me.rank() == 1) config.clip = 0.5;
    EXPECT_THAT(CheckSameRun(ranks, config, "the data are these"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("rank 1: clip = 0.5 here, and clip = 1.0 in rank 0")));
  });
}

TEST(RankJobTest, RanksAreLaidOutAsTheKeysSay) {
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

TEST(RankJobTest, RanksArePipelinesAsTheKeysSay) {
  RunConfig config;
  config.pipeline = 2;
  config.tensor = "1d";
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 8));
  EXPECT_EQ(layout.CoordinatesOf(6), "pp 1, tp 2");
}

TEST(RankJobTest, RanksShareSequencesAsTheKeysSay) {
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

TEST(RankJobTest, SizesThatDoNotDivideTheRanksNameTheirKeys) {
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

TEST(RankJobTest, RanksOfAMachineShareItsProcessors) {
  EXPECT_EQ(ThreadsOfRank(16, 16, 4), 4);
  EXPECT_EQ(ThreadsOfRank(16, 2, 4), 2);  // The launcher has bound it to two.
  EXPECT_EQ(ThreadsOfRank(2, 2, 8), 1);
}

}  // namespace
}  // namespace gemini::trainer
