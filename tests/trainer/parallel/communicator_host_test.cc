// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator_host.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/communicator_conformance.h"
#include "tests/trainer/parallel/thread_ranks.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

class CommunicatorHostTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorHostTest, ::testing::Range(1, 9));

TEST_P(CommunicatorHostTest, RandomExchangesAreTheModels) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    ExpectRandomExchanges(me, /*seed=*/static_cast<uint64_t>(me.num_ranks()), 1430);
  });
}

TEST_P(CommunicatorHostTest, ASilentRankExchangesNothing) {
  RunThreadRanks(GetParam(), ExpectSilence);
}

TEST_P(CommunicatorHostTest, WhatIsSentIsCounted) { RunThreadRanks(GetParam(), ExpectCounts); }

TEST(CommunicatorHostPairTest, LargeSumsGoBySlices) {
  for (const int num_ranks : {1, 2, 3}) RunThreadRanks(num_ranks, ExpectLargeSums);
}

TEST(CommunicatorHostPairTest, MessagesMayCross) {
  RunThreadRanks(2, [](Communicator& me) { ExpectCrossedMessages(me, /*by_tags=*/true); });
}

TEST(CommunicatorHostPairTest, WhatNoRankCanDoIsRefused) { RunThreadRanks(2, ExpectRefusals); }

// The first failure is everybody's who comes behind it, and nobody waits for ever.
TEST(CommunicatorHostPairTest, BehindAFailureAllFail) {
  RunThreadRanks(2, [](Communicator& me) {
    std::byte bytes[4] = {};
    const Work first = me.AllGather(me.world(), bytes, bytes + 2, me.rank() + 1, "unequal");
    const Work second = me.Broadcast(me.world(), bytes, 1, 0, "behind");
    const auto failure = StatusIs(absl::StatusCode::kInternal, HasSubstr("all-gather of"));
    EXPECT_THAT(first->Wait(), failure);
    EXPECT_THAT(second->Wait(), failure);
    EXPECT_THAT(me.AllReduce(me.world(), SumType::kFp32, bytes, 1, "later")->Wait(), failure);
    EXPECT_THAT(me.MakeGroup("late", {{0, 1}}), failure);
  });
}

// One rank alone fails. The transport tells the other that it is gone.
TEST(CommunicatorHostPairTest, AMessageOfAnotherSizeFailsItsReceiverAlone) {
  for (const int64_t size_bytes : {3, 5}) {
    RunThreadRanks(2, [size_bytes](Communicator& me) {
      std::array<std::byte, 8> bytes = {};
      if (me.rank() == 0) {
        EXPECT_OK(me.Send(me.world(), bytes.data(), size_bytes, 1, 0, "odd")->Wait());
        const auto is_gone = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 is gone"));
        EXPECT_THAT(me.AllGather(me.world(), bytes.data(), bytes.data(), 1, "alone")->Wait(),
                    is_gone);
        EXPECT_THAT(me.Broadcast(me.world(), bytes.data(), 1, 0, "later")->Wait(), is_gone);
      } else {
        const auto failure =
            StatusIs(absl::StatusCode::kInternal, HasSubstr("where 4 are received"));
        EXPECT_THAT(me.Receive(me.world(), bytes.data(), 4, 0, 0, "odd")->Wait(), failure);
        EXPECT_THAT(me.AllGather(me.world(), bytes.data(), bytes.data(), 1, "alone")->Wait(),
                    failure);
      }
    });
  }
}

// The end does not wait for what the other never issues.
TEST(CommunicatorHostPairTest, ARankWhoseTransportFailsEnds) {
  RunThreadRanks(2, [](Communicator& me) {
    static std::array<std::byte, 8> bytes = {};
    if (me.rank() == 1) me.Receive(me.world(), bytes.data(), 4, 0, 0, "never sent");
  });
}

TEST(CommunicatorHostPairTest, ATransportThatCannotBeMadeIsSaid) {
  EXPECT_THAT(CommunicatorHost::Make(0, 1, [] { return absl::UnavailableError("no network"); }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no network")));
}

// What was issued is done, though nobody waits for it.
TEST(CommunicatorHostPairTest, TheEndWaitsForWhatWasIssued) {
  std::array<float, 2> values = {1, 2};
  RunThreadRanks(2, [&values](Communicator& me) {
    me.AllReduce(me.world(), SumType::kFp32, &values[static_cast<size_t>(me.rank())], 1, "last");
  });
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
}

// The receiver may be at its end when the message comes, or before it.
TEST(CommunicatorHostPairTest, AFailureEndsWhatTheEndWaitsFor) {
  for (int round = 0; round < 200; ++round) {
    std::array<std::array<std::byte, 8>, 2> bytes = {};
    RunThreadRanks(2, [&bytes](Communicator& me) {
      if (me.rank() == 0) {
        EXPECT_OK(me.Send(me.world(), bytes[0].data(), 3, 1, 0, "odd")->Wait());
      } else {
        me.Receive(me.world(), bytes[1].data(), 4, 0, 0, "odd");
      }
    });
  }
}

}  // namespace
}  // namespace gemini::trainer
