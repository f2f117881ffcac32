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

TEST(RankJobTest, RanksOfAMachineShareItsProcessors) {
  EXPECT_EQ(ThreadsOfRank(16, 16, 4), 4);
  EXPECT_EQ(ThreadsOfRank(16, 2, 4), 2);  // The launcher has bound it to two.
  EXPECT_EQ(ThreadsOfRank(2, 2, 8), 1);
}

}  // namespace
}  // namespace gemini::trainer
