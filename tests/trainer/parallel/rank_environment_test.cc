// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_environment.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::map<std::string, std::string, std::less<>>;

const Values kTorchrun = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "7"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Values kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
// Task 9 of 11, on the third node.
const Values kSrun = {{"SLURM_STEP_ID", "0"},         {"SLURM_PROCID", "9"},
                      {"SLURM_LOCALID", "1"},         {"SLURM_NODEID", "2"},
                      {"SLURM_STEP_NUM_TASKS", "11"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

absl::StatusOr<RankEnvironment> Read(const Values& values) {
  return ReadRankEnvironment([&](absl::string_view name) -> std::optional<std::string> {
    const auto found = values.find(std::string(name));
    if (found == values.end()) return std::nullopt;
    return found->second;
  });
}

// Those of `values` with `name` set to `text`.
Values With(Values values, const std::string& name, const std::string& text) {
  values[name] = text;
  return values;
}
Values Without(Values values, const std::string& name) {
  values.erase(name);
  return values;
}
Values Together(Values first, const Values& second) {
  first.insert(second.begin(), second.end());
  return first;
}

void ExpectRefused(const Values& values, const std::string& what) {
  EXPECT_THAT(Read(values), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
}

TEST(RankEnvironmentTest, WithoutALauncherAJobIsOne) {
  ASSERT_OK_AND_ASSIGN(const RankEnvironment alone, Read({}));
  EXPECT_EQ(alone.launcher, Launcher::kNone);
  EXPECT_EQ(alone.num_ranks, 1);
  EXPECT_FALSE(alone.rendezvous.has_value());
  // Other programs' variables, and a batch script's, in which no step runs.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"}) {
    ASSERT_OK_AND_ASSIGN(const RankEnvironment other, Read({{name, "3"}}));
    EXPECT_EQ(other.launcher, Launcher::kNone) << name;
  }
}

TEST(RankEnvironmentTest, TorchrunSaysWhereRanksFindEachOther) {
  ASSERT_OK_AND_ASSIGN(const RankEnvironment found, Read(kTorchrun));
  EXPECT_EQ(found.launcher, Launcher::kTorchrun);
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.num_ranks, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.num_local_ranks, 4);
  ASSERT_TRUE(found.rendezvous.has_value());
  EXPECT_EQ(found.rendezvous->host, "node0");
  EXPECT_EQ(found.rendezvous->port, 29500);
  EXPECT_TRUE(found.rendezvous->is_served);
  EXPECT_EQ(found.rendezvous->key_prefix, "gemini/7/2/");
  ASSERT_OK_AND_ASSIGN(const RankEnvironment plain,
                       Read(Without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")));
  EXPECT_FALSE(plain.rendezvous->is_served);
}

TEST(RankEnvironmentTest, OpenMpiAndSrunSayWhoIsOnThisMachine) {
  ASSERT_OK_AND_ASSIGN(const RankEnvironment mpi, Read(kOpenMpi));
  EXPECT_EQ(mpi.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(mpi.rank, 3);
  EXPECT_EQ(mpi.num_ranks, 4);
  EXPECT_EQ(mpi.local_rank, 1);
  EXPECT_EQ(mpi.num_local_ranks, 2);
  ASSERT_OK_AND_ASSIGN(const RankEnvironment srun, Read(kSrun));
  EXPECT_EQ(srun.launcher, Launcher::kSrun);
  EXPECT_EQ(srun.rank, 9);
  EXPECT_EQ(srun.num_ranks, 11);
  EXPECT_EQ(srun.local_rank, 1);
  EXPECT_EQ(srun.num_local_ranks, 3);
  ASSERT_OK_AND_ASSIGN(const RankEnvironment second,
                       Read(With(With(kSrun, "SLURM_NODEID", "1"), "SLURM_LOCALID", "3")));
  EXPECT_EQ(second.num_local_ranks, 4);
}

// Each launcher may be started by the next one.
TEST(RankEnvironmentTest, RanksOfSrunFindEachOtherOnTheirFirstNode) {
  const auto place_of = [](Values values) { return (*Read(values)).rendezvous; };
  const Values step = Together(kSrun, {{"SLURM_JOB_ID", "70012"}});
  EXPECT_FALSE(place_of(step).has_value());  // There is no list.
  for (const auto& [list, first] :
       std::map<std::string, std::string>{{"gpu[007-009,12],head", "gpu007"},
                                          {"a", "a"},
                                          {"a,b[1-2]", "a"},
                                          {"r[1,3-4]n2", "r1n2"}}) {
    SCOPED_TRACE(list);
    const auto place = place_of(With(step, "SLURM_STEP_NODELIST", list));
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->host, first);
    EXPECT_EQ(place->port, 20012);
    EXPECT_FALSE(place->is_served);
    EXPECT_EQ(place->key_prefix, "gemini/70012.0/");
  }
  const Values listed = With(step, "SLURM_STEP_NODELIST", "a");
  EXPECT_EQ(place_of(With(listed, "SLURM_STEP_ID", "3"))->port, 20015);  // Two steps of a job.
  EXPECT_FALSE(place_of(With(step, "SLURM_STEP_NODELIST", "a[1-")).has_value());
  EXPECT_FALSE(place_of(Without(listed, "SLURM_JOB_ID")).has_value());
}

TEST(RankEnvironmentTest, APlaceThatIsSetIsThatOfEveryLauncher) {
  const Values set = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "7000"}};
  EXPECT_FALSE((*Read(kOpenMpi)).rendezvous.has_value());
  for (const Values& launched :
       {kOpenMpi, Together(kSrun, {{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_NODELIST", "a"}})}) {
    ASSERT_OK_AND_ASSIGN(const RankEnvironment found, Read(Together(launched, set)));
    ASSERT_TRUE(found.rendezvous.has_value());
    EXPECT_EQ(found.rendezvous->host, "head");
    EXPECT_EQ(found.rendezvous->port, 7000);
    EXPECT_FALSE(found.rendezvous->is_served);
  }
  // One of them alone, or no port, is somebody else's.
  for (const char* const port : {"", "0", "70000", "x"}) {
    ASSERT_OK_AND_ASSIGN(const RankEnvironment found,
                         Read(Together(kOpenMpi, With(set, "MASTER_PORT", port))));
    EXPECT_FALSE(found.rendezvous.has_value()) << port;
  }
}

TEST(RankEnvironmentTest, TheInnermostLauncherCounts) {
  ASSERT_OK_AND_ASSIGN(const RankEnvironment mpi, Read(Together(kOpenMpi, kSrun)));
  EXPECT_EQ(mpi.launcher, Launcher::kOpenMpi);
  ASSERT_OK_AND_ASSIGN(const RankEnvironment torchrun,
                       Read(Together(Together(kTorchrun, kOpenMpi), kSrun)));
  EXPECT_EQ(torchrun.launcher, Launcher::kTorchrun);
  EXPECT_EQ(torchrun.rank, 5);
}

TEST(RankEnvironmentTest, VariablesThatTorchrunDidNotSetMustAgree) {
  Values plain = Without(kTorchrun, "TORCHELASTIC_RUN_ID");
  ASSERT_OK_AND_ASSIGN(const RankEnvironment alone, Read(plain));
  EXPECT_EQ(alone.launcher, Launcher::kTorchrun);
  EXPECT_EQ(alone.rendezvous->key_prefix, "gemini/none/2/");
  EXPECT_THAT(Read(Together(plain, kOpenMpi)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 5 of 8"), HasSubstr("mpirun rank 3 of 4"),
                             HasSubstr("unset RANK and WORLD_SIZE"))));
  ExpectRefused(Together(plain, kSrun), "srun rank 9 of 11");
  // Those two alone are compared.
  plain = {{"RANK", "3"}, {"WORLD_SIZE", "4"}};
  ASSERT_OK_AND_ASSIGN(const RankEnvironment agreed, Read(Together(plain, kOpenMpi)));
  EXPECT_EQ(agreed.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(agreed.rank, 3);
}

TEST(RankEnvironmentTest, WhatCannotBeIsRefusedByName) {
  ExpectRefused(With(kTorchrun, "RANK", "8"), "RANK=8 is not below WORLD_SIZE=8");
  ExpectRefused(With(kTorchrun, "RANK", "-1"), "RANK=-1 is no number from 0");
  ExpectRefused(With(kTorchrun, "WORLD_SIZE", "two"), "WORLD_SIZE=two is no number");
  ExpectRefused(With(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE=0 is no number from 1");
  ExpectRefused(With(kTorchrun, "LOCAL_RANK", "4"), "LOCAL_RANK=4 is not below");
  ExpectRefused(With(kTorchrun, "LOCAL_WORLD_SIZE", "9"),
                "LOCAL_WORLD_SIZE=9 is no number from 1 to 8");
  ExpectRefused(With(kTorchrun, "MASTER_PORT", "65536"), "MASTER_PORT=65536");
  ExpectRefused(Without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  ExpectRefused(Without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is not set");
  ExpectRefused(With(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "x"), "TORCHELASTIC_RESTART_COUNT=x");
  for (const auto& [name, value] : kOpenMpi) {
    ExpectRefused(Without(kOpenMpi, name), name + " is not set");
  }
  ExpectRefused(With(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4"), "OMPI_COMM_WORLD_RANK=4");
  ExpectRefused(Without(kTorchrun, "LOCAL_RANK"), "LOCAL_RANK is not set");
  ExpectRefused(Without(kTorchrun, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE is not set");
  ExpectRefused(Without(kTorchrun, "RANK"), "RANK is not set");
  for (const auto& [name, value] : kSrun) {
    if (name == "SLURM_STEP_ID" || name == "SLURM_STEP_TASKS_PER_NODE") continue;
    ExpectRefused(Without(kSrun, name), name + " is not set");
  }
  ExpectRefused(With(kSrun, "SLURM_LOCALID", "3"), "SLURM_LOCALID=3 is no number from 0 to 2");
  for (const char* list : {"", "x", "4(x2)", "4(x2", "4(x0),3", "0,0,3", "4,4,12", "4(x2)(x1),3"}) {
    ExpectRefused(With(kSrun, "SLURM_STEP_TASKS_PER_NODE", list),
                  std::string("SLURM_STEP_TASKS_PER_NODE=") + list + " does not say");
  }
}

// The variables of this very process, which a test may run below a launcher with.
TEST(RankEnvironmentTest, ThisProcessHasItsOwn) {
  ::setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  for (const char* name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
  ASSERT_OK_AND_ASSIGN(const RankEnvironment found, ReadRankEnvironment());
  EXPECT_EQ(found.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(found.rank, 1);
}

}  // namespace
}  // namespace gemini::trainer
