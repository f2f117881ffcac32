// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/rank_job.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "trainer/parallel/nccl_library.h"
#include "trainer/parallel/part_of_run.h"
#include "trainer/parallel/rank_store.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RankJobTest, OneRankNeedsNoLauncherAndNoLibrary) {
  ASSERT_OK_AND_ASSIGN(const RankJob job, JoinRanks({}, JoinWish()));
  EXPECT_EQ(job.communicator, nullptr);
  EXPECT_TRUE(job.agreement().is_alone());
}

TEST(RankJobTest, AProgramWithoutTheModuleSaysWhereItWasLookedFor) {
  const RankEnvironment where = {.launcher = Launcher::kOpenMpi, .num_ranks = 2};
  EXPECT_THAT(JoinRanks(where, JoinWish()).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("tests/gemini_mpi.so"), HasSubstr("libopenmpi-dev"))));
  // A rank that cannot go on anyway says that.
  EXPECT_THAT(JoinRanks(where, absl::InvalidArgumentError("--steps is missing")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--steps is missing")));
}

TEST(RankJobTest, RanksWithoutMpiAndWithoutAPlaceAreToldWhatToSet) {
  EXPECT_THAT(JoinRanks({.launcher = Launcher::kOpenMpi, .num_ranks = 2},
                        JoinWish{.transport = Transport::kNccl, .device = "cuda"})
                  .status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the ranks of mpirun"), HasSubstr("MASTER_PORT"))));
}

// Returns what a rank says when it joins, which fails.
std::string SaidOfJoining(const RankEnvironment& where, const absl::StatusOr<JoinWish>& wish) {
  std::vector<std::string> said;
  const absl::StatusOr<RankJob> job = JoinRanks(
      where, wish, [&said](const absl::Status& why) { said.emplace_back(why.message()); });
  EXPECT_FALSE(job.ok());
  EXPECT_LE(said.size(), 1U);
  return said.empty() ? "" : said.front();
}

TEST(RankJobTest, AnErrorThatIsNotToldToAllIsSaidByWhoHasIt) {
  const auto where = [](int64_t rank, int64_t local_rank) {
    return RankEnvironment{.launcher = Launcher::kOpenMpi,
                           .rank = rank,
                           .num_ranks = 4,
                           .local_rank = local_rank,
                           .num_local_ranks = 2};
  };
  // Of a machine without MPI, and without a place at which ranks find each other.
  const JoinWish on_gpus = {.transport = Transport::kNccl, .device = "cuda"};
  EXPECT_THAT(SaidOfJoining(where(2, 0), JoinWish()), StartsWith("several ranks need MPI"));
  EXPECT_EQ(SaidOfJoining(where(3, 1), JoinWish()), "");
  EXPECT_THAT(SaidOfJoining(where(2, 0), on_gpus), StartsWith("nothing says where"));
  EXPECT_EQ(SaidOfJoining(where(3, 1), on_gpus), "");
  // What this rank alone has, though it is not the first of its machine.
  const absl::Status own = absl::InvalidArgumentError("--lr is no number");
  EXPECT_EQ(SaidOfJoining(where(3, 1), own), "rank 3: --lr is no number");
  EXPECT_EQ(SaidOfJoining({}, own), "--lr is no number");
}

// Ranks find each other in a store of the first one's, and one of them has a wrong key.
TEST(RankJobTest, AnErrorOfAllIsSaidByTheFirstBeforeTheOthersReturn) {
  SetNcclEnvironment({});  // Else the threads would, and lengthen the environment together.
  Rendezvous place;
  ASSERT_OK(ListenForRanks(/*one_machine=*/true, place));  // A port that is free.
  std::atomic<int> num_said = 0;
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const RankEnvironment where = {.launcher = Launcher::kTorchrun,
                                     .rank = rank,
                                     .num_ranks = 2,
                                     .local_rank = rank,
                                     .num_local_ranks = 2,
                                     .rendezvous = place};
      const absl::StatusOr<JoinWish> wish =
          rank == 1 ? absl::StatusOr<JoinWish>(absl::InvalidArgumentError("--lr is no number"))
                    : JoinWish{.transport = Transport::kNccl};
      const absl::Status status = JoinRanks(where, wish, [&](const absl::Status& why) {
                                    EXPECT_EQ(rank, 0);
                                    EXPECT_THAT(why, StatusIs(absl::StatusCode::kInvalidArgument,
                                                              "rank 1: --lr is no number"));
                                    ++num_said;
                                  }).status();
      EXPECT_TRUE(IsAgreed(status));
      EXPECT_EQ(num_said, 1);
    });
  }
}

TEST(RankJobTest, TheTransportFollowsFromTheDevice) {
  const RankLayout layout(2);
  const auto wish = [&](const char* device, const char* transport, Launcher launcher,
                        bool has_nccl_for_cpus) {
    RunConfig config;
    config.device = device;
    config.transport = transport;
    return JoinWishOf(config, layout, launcher, has_nccl_for_cpus);
  };
  ASSERT_OK_AND_ASSIGN(const JoinWish cpus, wish("cpu", "auto", Launcher::kOpenMpi, false));
  EXPECT_EQ(cpus.transport, Transport::kMpi);
  for (const char* const transport : {"auto", "nccl"}) {
    ASSERT_OK_AND_ASSIGN(const JoinWish gpus, wish("cuda", transport, Launcher::kTorchrun, false));
    EXPECT_EQ(gpus.transport, Transport::kNccl);
    EXPECT_EQ(gpus.device, "cuda");
    EXPECT_FALSE(gpus.exact);
  }
  EXPECT_THAT(wish("cpu", "nccl", Launcher::kOpenMpi, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--transport nccl with --device cpu: NCCL exchanges")));
  ASSERT_OK_AND_ASSIGN(const JoinWish tests, wish("cpu", "nccl", Launcher::kTorchrun, true));
  EXPECT_EQ(tests.transport, Transport::kNccl);
  for (const char* const transport : {"auto", "mpi"}) {
    EXPECT_THAT(wish("cpu", transport, Launcher::kTorchrun, true),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("--device cuda"), HasSubstr("mpirun"))));
  }
  RunConfig config;
  config.transport = "nccl";  // One rank exchanges nothing.
  EXPECT_OK(JoinWishOf(config, RankLayout(1), Launcher::kTorchrun, false));
}

TEST(RankJobTest, KeysOfTheExchangeBecomeTheWish) {
  RunConfig config;
  config.device = "cuda:1";
  config.exact = config.share_gpu = true;
  config.collective_timeout = 7;
  ASSERT_OK_AND_ASSIGN(const JoinWish wish,
                       JoinWishOf(config, RankLayout(2), Launcher::kOpenMpi, false));
  EXPECT_TRUE(wish.exact);
  EXPECT_TRUE(wish.shares_gpu);
  EXPECT_EQ(wish.limit, absl::Seconds(7));
}

TEST(RankJobTest, SumsAreExactWhereSeveralGroupsAddTheSameOverThreeRanks) {
  const auto needs = [](RunConfig config, int64_t num_ranks) {
    const absl::StatusOr<RankLayout> layout = LayoutOf(config, num_ranks);
    EXPECT_OK(layout);
    return layout.ok() && NeedsExactSums(*layout);
  };
  RunConfig config;
  EXPECT_FALSE(needs(config, 8));  // One group adds it for all.
  config.sequence_parallel = "ring";
  EXPECT_FALSE(needs(config, 8));
  config = {};
  config.tensor = "1d";
  config.tensor_size = 2;
  EXPECT_FALSE(needs(config, 4));
  EXPECT_TRUE(needs(config, 6));
  config.tensor_size = 4;
  EXPECT_FALSE(needs(config, 4));
  config.sequence_parallel = "ring";
  config.sequence_size = 2;
  config.tensor_size = 2;
  EXPECT_FALSE(needs(config, 4));
  EXPECT_TRUE(needs(config, 8));  // Ranks of a ring hold one part.
  config = {};
  config.tensor = "2d";
  config.tensor_size = 4;
  EXPECT_FALSE(needs(config, 4));
  config.tensor_size = 9;
  EXPECT_TRUE(needs(config, 9));
  config.tensor = "2.5d";
  config.tensor_size = 12;
  config.tensor_depth = 3;
  EXPECT_TRUE(needs(config, 12));
}

TEST(RankJobTest, ALineOfARankIsRefusedBeforeRanksKnowEachOther) {
  const RankEnvironment two = {.launcher = Launcher::kTorchrun, .num_ranks = 2};
  const std::vector<std::string> plain = {"--model", "m", "--data",   "d.npy",
                                          "--steps", "1", "--output", "o"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plain.begin(), plain.end());
    return more;
  };
  ASSERT_OK_AND_ASSIGN(const LineOfRank help, ParseLineOfRank({"--help"}, two));
  EXPECT_TRUE(help.line.help);
  EXPECT_THAT(ParseLineOfRank(plain, two).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("use mpirun")));
  EXPECT_THAT(ParseLineOfRank(with({"--pipeline", "3"}), two).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("start 3 ranks")));
  ASSERT_OK_AND_ASSIGN(const LineOfRank gpus, ParseLineOfRank(with({"--device", "cuda"}), two));
  EXPECT_EQ(gpus.wish.transport, Transport::kNccl);
  EXPECT_EQ(gpus.said, "");
  const RankEnvironment six = {.launcher = Launcher::kTorchrun, .num_ranks = 6};
  const std::vector<std::string> shared =
      with({"--device", "cuda", "--tensor", "1d", "--tensor-size", "2"});
  ASSERT_OK_AND_ASSIGN(const LineOfRank exact, ParseLineOfRank(shared, six));
  EXPECT_TRUE(exact.wish.exact);
  EXPECT_FALSE(exact.line.config.exact);  // The run's keys stay as they were given.
  EXPECT_THAT(exact.said, HasSubstr("as with --exact"));
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

}  // namespace
}  // namespace gemini::trainer
