// SPDX-License-Identifier: Apache-2.0
// What CommunicatorNccl does where nothing fails, over a library in NCCL's place.
#include "trainer/parallel/communicator_nccl.h"

#include <array>
#include <latch>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/communicator_conformance.h"
#include "tests/trainer/parallel/nccl_ranks.h"

namespace gemini::trainer {
namespace {

// Runs `rank_main` in ranks that must come into being.
void RunRanks(int64_t num_ranks, CallersMemory callers, const NcclOptions& options,
              const std::function<void(CommunicatorNccl&)>& rank_main) {
  RunNcclRanks(num_ranks, callers, options, [&](int64_t, MadeCommunicator made) {
    ASSERT_OK(made);
    rank_main(**made);
  });
}

NcclOptions Options(bool exact) {
  return {.exact = exact,
          .slice_bytes = 256,  // So the sums of the random exchanges have several slices.
          .world_messages = MessagePaths::kAll};
}

// Ranks, whether sums are exact, and where callers have their memory.
class NcclConformanceTest : public ::testing::TestWithParam<std::tuple<int, bool, CallersMemory>> {
 protected:
  int num_ranks() const { return std::get<0>(GetParam()); }
  bool exact() const { return std::get<1>(GetParam()); }
  CallersMemory callers() const { return std::get<2>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, NcclConformanceTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8), ::testing::Bool(),
                                            ::testing::Values(CallersMemory::kOnDevice,
                                                              CallersMemory::kOnHost,
                                                              CallersMemory::kMixed)));

TEST_P(NcclConformanceTest, RandomExchangesAreTheModels) {
  RunRanks(num_ranks(), callers(), Options(exact()), [&](Communicator& me) {
    ExpectRandomExchanges(me, /*seed=*/static_cast<uint64_t>(me.num_ranks()), 60,
                          exact() ? Addends::kOrderShows : Addends::kWhole);
  });
}

TEST_P(NcclConformanceTest, ASilentRankExchangesNothing) {
  RunRanks(num_ranks(), callers(), Options(exact()), ExpectSilence);
}

TEST_P(NcclConformanceTest, WhatIsSentIsCounted) {
  RunRanks(num_ranks(), callers(), Options(exact()), ExpectCounts);
}

TEST(NcclConformancePairTest, LargeSumsGoBySlices) {
  for (const int num_ranks : {1, 2, 3}) {
    RunRanks(num_ranks, CallersMemory::kOnDevice, {.exact = true, .slice_bytes = 1 << 20},
             ExpectLargeSums);
  }
}

TEST(NcclConformancePairTest, MessagesMayCross) {
  for (const CallersMemory callers : {CallersMemory::kOnDevice, CallersMemory::kOnHost}) {
    RunRanks(2, callers, {},
             [](Communicator& me) { ExpectCrossedMessages(me, /*by_tags=*/false); });
  }
}

TEST(NcclConformancePairTest, WhatNoRankCanDoIsRefused) {
  RunRanks(2, CallersMemory::kOnDevice, {}, ExpectRefusals);
}

// Else the conformance of sums without `exact` would show nothing of the fold.
TEST(NcclConformancePairTest, ExactSumsAreTheFoldAndNcclsOwnAreNot) {
  const auto sum = [](bool exact) {
    float of_first = 0;
    RunRanks(3, CallersMemory::kOnDevice, Options(exact), [&](CommunicatorNccl& me) {
      constexpr std::array<float, 3> kValues = {1, 1 << 25, -(1 << 25)};
      float value = kValues[static_cast<size_t>(me.rank())];
      EXPECT_OK(me.AllReduce(me.world(), SumType::kFp32, &value, 1, "sum")->Wait());
      if (me.rank() == 0) of_first = value;
    });
    return of_first;
  };
  EXPECT_EQ(sum(true), 0);   // (1 + 2^25) - 2^25
  EXPECT_EQ(sum(false), 1);  // As the library adds: (-2^25 + 2^25) + 1
}

// What was issued is done, though nobody waits for it.
TEST(NcclConformancePairTest, TheEndWaitsForWhatWasIssued) {
  for (const CallersMemory callers : {CallersMemory::kOnDevice, CallersMemory::kOnHost}) {
    std::array<float, 2> values = {1, 2};
    RunRanks(2, callers, {}, [&values](Communicator& me) {
      me.AllReduce(me.world(), SumType::kFp32, &values[static_cast<size_t>(me.rank())], 1, "last");
    });
    EXPECT_EQ(values[0], 3);
    EXPECT_EQ(values[1], 3);
  }
}

// Issuing does not wait for other ranks, and so it is not for them that a rank waits.
TEST(NcclConformancePairTest, ACollectiveThatWaitsForOthersIsUnderWay) {
  std::latch was_seen(2);
  RunRanks(2, CallersMemory::kOnHost, {}, [&](Communicator& me) {
    std::array<std::byte, 8> bytes = {};
    EXPECT_OK(me.Broadcast(me.world(), bytes.data(), 8, 0, "both are here")->Wait());
    Work work;
    if (me.rank() == 0) {
      work = me.Broadcast(me.world(), bytes.data(), 8, 0, "first");
      me.AllGather(me.world(), bytes.data(), bytes.data(), 4, "second");
      while (!me.under_way().has_value() || me.under_way()->site != "first") {
        std::this_thread::yield();  // The one before may not have been noted as done.
      }
      EXPECT_EQ(me.under_way()->number, 2);
      EXPECT_EQ(me.under_way()->ranks, std::vector<int64_t>({0, 1}));
      EXPECT_FALSE(work->Done());
      was_seen.arrive_and_wait();
    } else {
      was_seen.arrive_and_wait();
      work = me.Broadcast(me.world(), bytes.data(), 8, 0, "first");
      me.AllGather(me.world(), bytes.data(), bytes.data(), 4, "second");
    }
    EXPECT_OK(work->Wait());
    while (me.under_way().has_value()) std::this_thread::yield();
  });
}

// On a GPU the thread goes on, and the watchdog must know all the same what its rank waits for.
TEST(NcclConformancePairTest, AMessageForWhichOperatorsWaitIsKnown) {
  std::latch was_seen(2);
  RunRanks(2, CallersMemory::kOnDevice, {}, [&](Communicator& me) {
    static std::array<std::byte, 16> bytes;
    if (me.rank() == 1) {
      was_seen.arrive_and_wait();
      EXPECT_OK(me.Send(me.world(), bytes.data() + 8, 8, 0, 0, "sent")->Wait());
      return;
    }
    const Work work = me.Receive(me.world(), bytes.data(), 8, 1, 0, "gradients");
    EXPECT_FALSE(me.awaited_message().has_value());
    const std::jthread operators([&] { EXPECT_OK(work->Wait()); });
    while (!me.awaited_message().has_value()) std::this_thread::yield();
    EXPECT_EQ(me.awaited_message()->site, "gradients");
    EXPECT_EQ(me.awaited_message()->rank, 1);
    was_seen.arrive_and_wait();
    while (me.awaited_message().has_value()) std::this_thread::yield();
  });
}

}  // namespace
}  // namespace gemini::trainer
