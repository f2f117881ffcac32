// SPDX-License-Identifier: Apache-2.0
// What CommunicatorNccl does when NCCL, a rank or the network fails: nobody waits for ever, all say
// the first error, and each communicator is aborted once, together with the others
// (RunNcclRanks and fake_nccl.h check that).
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/nccl_ranks.h"
#include "trainer/parallel/communicator_nccl.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

// Makes one of each kind of call. `before_last` is called before an exchange for which the others
// may have what they need from a rank that then fails.
absl::Status UseEverything(CommunicatorNccl& me, int64_t rank,
                           const std::function<void()>& before_last) {
  const absl::StatusOr<const RankGroup*> pair = me.MakeGroup("pairs", {{0, 1}, {2}});
  if (!pair.ok()) return pair.status();
  absl::Status status = me.PrepareMessages(**pair, MessagePaths::kNeighbours);
  if (!status.ok()) return status;
  // Where an exchange fails, others may read and write it until the process ends.
  static std::array<std::array<float, 64>, 3> memory;
  float* const at = memory[static_cast<size_t>(rank)].data();
  const RankGroup& world = me.world();
  // Each is under way beside the others, so it has memory of its own.
  std::vector<Work> works;
  if (rank < 2) {
    works.push_back(me.Send(**pair, at, 4, 1 - rank, 0, "sent"));
    works.push_back(me.Receive(**pair, at + 4, 4, 1 - rank, 0, "received"));
  }
  works.push_back(me.AllGather(world, at + 8 + rank, at + 8, 4, "gather"));
  works.push_back(me.ReduceScatter(world, SumType::kFp32, at + 16, at + 20, 1, "scatter"));
  works.push_back(me.AllReduce(**pair, SumType::kBf16, at + 24, 6, "sum"));
  works.push_back(me.AllToAll(world, at + 28, at + 36, 8, "parts"));
  works.push_back(me.Shift(world, at + 44, at + 48, 8, "shift"));
  works.push_back(me.Broadcast(world, at + 52, 8, 1, "copies"));
  for (const Work& work : works) status.Update(work->Wait());
  before_last();
  status.Update(me.AllReduce(world, SumType::kFp32, at + 56, 1, "last")->Wait());
  return status;
}

class NcclCallsTest : public ::testing::TestWithParam<std::tuple<int, bool, CallersMemory>> {};

INSTANTIATE_TEST_SUITE_P(Calls, NcclCallsTest,
                         ::testing::Combine(::testing::Values(0, 2), ::testing::Bool(),
                                            ::testing::Values(CallersMemory::kOnDevice,
                                                              CallersMemory::kOnHost)));

// The first call of a rank fails, in another run the second, and so on, until one is clean.
TEST_P(NcclCallsTest, EachThatFailsEndsAllRanks) {
  const auto [failing_rank, exact, callers] = GetParam();
  NcclOptions options = {.exact = exact, .slice_bytes = 64};
  int64_t num_failed = 0;
  for (int64_t number = 1;; ++number) {
    // Of a rank that has not joined the others hear nothing.
    const bool never_joins = number == 1;
    options.limit = never_joins ? std::chrono::milliseconds(100) : std::chrono::minutes(1);
    std::array<absl::Status, 3> statuses;
    std::atomic<int64_t> calls_before_last = 1'000'000;
    std::atomic<int64_t> calls_before_end = 0;
    RunNcclRanks(
        3, callers, options,
        [&, failing = failing_rank](int64_t rank, MadeCommunicator made) {
          absl::Status& status = statuses[static_cast<size_t>(rank)];
          const auto calls = [&] { return TheFakeNccl().num_calls(failing); };
          status = made.ok() ? UseEverything(**made, rank,
                                             [&] {
                                               if (rank == failing) calls_before_last = calls();
                                             })
                             : made.status();
          if (rank == failing) calls_before_end = calls();
        },
        [&, failing = failing_rank](FakeNccl& fake) {
          fake.FailCall(failing, number, NcclResult::kSystemError);
        });
    if (HasFailure()) FAIL() << "with call " << number << " failing";
    if (number > calls_before_end) {
      EXPECT_OK(statuses[static_cast<size_t>(failing_rank)]);
      if (number > TheFakeNccl().num_calls(failing_rank)) {
        for (const absl::Status& status : statuses) EXPECT_OK(status);
        break;
      }
      // It failed when it said goodbye, while the others may still have been at the last exchange.
      continue;
    }
    ++num_failed;
    for (int rank = 0; rank < 3; ++rank) {
      const absl::Status& status = statuses[static_cast<size_t>(rank)];
      if (rank != failing_rank && never_joins) {
        // One of them finds that it is late, and the other may hear of that.
        EXPECT_FALSE(status.ok());
        continue;
      }
      if (rank != failing_rank && number > calls_before_last) continue;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr(rank == failing_rank ? "unhandled system error"
                                                                  : "remote process exited")))
          << "of rank " << rank << ", with call " << number << " of " << failing_rank << " failing";
    }
  }
  EXPECT_GT(num_failed, 30);
}

// Waits in the three ways in which a rank may wait for another that does not come.
void ExpectAllWaitsToFail(CommunicatorNccl& me, absl::StatusCode code, const std::string& what) {
  static std::array<std::byte, 64> bytes;
  const Work one = me.AllGather(me.world(), bytes.data(), bytes.data(), 8, "alone");
  const Work two = me.Receive(me.world(), bytes.data() + 32, 8, 1, 0, "never sent");
  EXPECT_THAT(one->Wait(), StatusIs(code, HasSubstr(what)));
  EXPECT_THAT(two->Wait(), StatusIs(code, HasSubstr(what)));
  EXPECT_TRUE(one->Done());
  EXPECT_THAT(me.Broadcast(me.world(), bytes.data(), 8, 0, "later")->Wait(),
              StatusIs(code, HasSubstr(what)));
  EXPECT_THAT(me.MakeGroup("later", {{0, 1}}), StatusIs(code, HasSubstr(what)));
  while (me.under_way().has_value()) std::this_thread::yield();
}

// Runs two ranks that both exist before either does anything, and end together.
void RunPair(CallersMemory callers, const NcclOptions& options,
             const std::function<void(CommunicatorNccl& me)>& rank_main) {
  std::latch are_made(2);
  std::latch are_over(2);
  RunNcclRanks(2, callers, options, [&](int64_t, MadeCommunicator made) {
    EXPECT_OK(made);
    are_made.arrive_and_wait();
    if (made.ok()) rank_main(**made);
    are_over.arrive_and_wait();
  });
}

class NcclFailuresTest : public ::testing::TestWithParam<CallersMemory> {};

INSTANTIATE_TEST_SUITE_P(Memory, NcclFailuresTest,
                         ::testing::Values(CallersMemory::kOnDevice, CallersMemory::kOnHost));

TEST_P(NcclFailuresTest, AnErrorThatNcclHearsOfEndsWhatWaits) {
  RunPair(GetParam(), {}, [](CommunicatorNccl& me) {
    if (me.rank() == 0) {
      ExpectAllWaitsToFail(me, absl::StatusCode::kUnavailable, "remote process exited");
      return;
    }
    TheFakeNccl().SetAsyncError(1, NcclResult::kSystemError);
    static std::byte byte{0};
    EXPECT_THAT(me.Receive(me.world(), &byte, 1, 0, 1, "waits")->Wait(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unhandled system error")));
  });
}

constexpr std::chrono::milliseconds kShort(60);

TEST(NcclTimeoutTest, ARankThatNeverComesEndsTheOthers) {
  FakeNccl& fake = TheFakeNccl();
  fake.Reset();
  ASSERT_OK_AND_ASSIGN(const NcclId id, MakeNcclId(FakeNcclLibrary()));
  EXPECT_THAT(CommunicatorNccl::Make(FakeNcclLibrary(), MakeHostExchange(CallersMemory::kOnHost),
                                     id, 0, 2, {.limit = kShort}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ncclCommInitRankConfig: not all ranks have come within 60 ms")));
  EXPECT_EQ(fake.num_made(), 1);
  EXPECT_EQ(fake.num_aborted(), 1);
  EXPECT_THAT(fake.violations(), ::testing::IsEmpty());
}

// The other rank makes none, or says nothing of messages, and hears of the end by NCCL.
TEST(NcclTimeoutTest, WhatNotAllPrepareEndsAll) {
  for (const bool makes_group : {false, true}) {
    RunPair(CallersMemory::kOnHost, {.limit = std::chrono::seconds(2)},
            [makes_group](CommunicatorNccl& me) {
              const RankGroup* group = &me.world();
              if (makes_group) {
                ASSERT_OK_AND_ASSIGN(group, me.MakeGroup("both", {{0, 1}}));
              }
              if (me.rank() == 1) {
                static std::byte byte{0};
                EXPECT_THAT(me.Receive(me.world(), &byte, 1, 0, 0, "waits")->Wait(),
                            StatusIs(absl::StatusCode::kUnavailable));
                return;
              }
              const absl::Status status =
                  makes_group ? me.PrepareMessages(*group, MessagePaths::kNeighbours)
                              : me.MakeGroup("both", {{0, 1}}).status();
              EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                           HasSubstr("ncclCommSplit: not all ranks")));
            });
  }
}

TEST(NcclTimeoutTest, AFailureInterruptsMakeGroup) {
  RunPair(CallersMemory::kOnHost, {}, [](CommunicatorNccl& me) {
    if (me.rank() == 1) return;
    const std::jthread other([] { TheFakeNccl().SetAsyncError(0, NcclResult::kSystemError); });
    EXPECT_THAT(me.MakeGroup("both", {{0, 1}}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unhandled system error")));
  });
}

// The other rank has the communicators, and sends nothing on them. What the first one has enqueued
// there waits for ever, so its streams end behind the aborts (RunNcclThreads checks that).
TEST(NcclTimeoutTest, ARankThatIsNotConnectedInTimeEndsTheOthers) {
  RunNcclThreads(2, CallersMemory::kOnHost, [](int64_t rank, const NcclId& id) {
    constexpr std::chrono::seconds kLimit(1);
    if (rank == 0) {
      EXPECT_THAT(
          CommunicatorNccl::Make(FakeNcclLibrary(), MakeHostExchange(CallersMemory::kOnHost), id, 0,
                                 2, {.limit = kLimit}),
          StatusIs(
              absl::StatusCode::kDeadlineExceeded,
              HasSubstr("connecting the ranks of world for messages: not all of them have come "
                        "within 1000 ms")));
      return;
    }
    NcclComms comms(FakeNcclLibrary(), MakeHostExchange(CallersMemory::kOnHost), 60 * kLimit,
                    [] {});
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, comms.MakeWorld(id, 1, 2));
    EXPECT_OK(comms.Split(world, 0, 1, 0));
    EXPECT_OK(comms.Split(world, 0, 1, 0));
    while (comms.failure()->status().ok()) std::this_thread::yield();
  });
}

}  // namespace
}  // namespace gemini::trainer
