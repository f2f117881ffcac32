// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/rank_exchange_job.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"

namespace gemini::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;
using trainer::CollectiveKind;
using trainer::Communicator;
using trainer::SentBytes;

constexpr CollectiveKind kCollectives[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce,
    CollectiveKind::kAllToAll,  CollectiveKind::kBroadcast,     CollectiveKind::kShift};

// What a rank has sent in exchanges of the kind. What the ranks tell each other about times is
// counted elsewhere.
SentBytes SentIn(const Communicator& rank, CollectiveKind kind) {
  for (const SentBytes& one : rank.sent()) {
    if (one.kind == kind && one.site == "exchanges that are measured") return one;
  }
  return {};
}

TEST(ParseRankExchangesTest, WordsSayKindNumberAndBytes) {
  EXPECT_THAT(ParseRankExchanges({"all-reduce:12:786432", "send:8:1"}),
              IsOkAndHolds(ElementsAre(
                  RankExchange{.kind = CollectiveKind::kAllReduce, .times = 12, .bytes = 786432},
                  RankExchange{.kind = CollectiveKind::kSend, .times = 8, .bytes = 1})));
  for (const CollectiveKind kind : kCollectives) {
    EXPECT_THAT(ParseRankExchanges({absl::StrCat(trainer::CollectiveKindName(kind), ":1:2")}),
                IsOkAndHolds(ElementsAre(RankExchange{.kind = kind, .times = 1, .bytes = 2})));
  }
}

TEST(ParseRankExchangesTest, WhatIsNoExchangeIsRefused) {
  for (const auto& [word, message] :
       {std::pair("all-reduce", "'all-reduce' is no exchange"),
        std::pair("all-reduce:1", "is no exchange"), std::pair("all-reduce:1:2:3", "no exchange"),
        std::pair("all-reduce:many:2", "no exchange"), std::pair("all-reduce:1:2.5", "no exchange"),
        std::pair("sum:1:2", "there is no kind 'sum'"),
        std::pair("receive:1:2", "there is no kind 'receive'"),
        std::pair("shift:0:2", "0 times 2 bytes"), std::pair("shift:1:0", "1 times 0 bytes"),
        std::pair("shift:1:-4", "1 times -4 bytes"),
        std::pair("shift:1:1073741825", "bytes at most 1073741824")}) {
    EXPECT_THAT(ParseRankExchanges({"send:1:1", word}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(message), HasSubstr("as all-reduce:12:786432"))))
        << word;
  }
  EXPECT_THAT(ParseRankExchanges({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("there is no exchange")));
}

class SecondsOfExchangesTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, SecondsOfExchangesTest, ::testing::Values(2, 3, 4));

// Bytes are what metrics count of a step, so that a step's own counts come out again.
TEST_P(SecondsOfExchangesTest, ARankSendsWhatItIsToldEachTime) {
  constexpr int kRuns = 2;
  constexpr int64_t kTimes = 3;
  const int64_t bytes = int64_t{48} * (GetParam() - 1);
  for (const CollectiveKind kind : kCollectives) {
    trainer::RunThreadRanks(GetParam(), [&](Communicator& me) {
      ASSERT_OK_AND_ASSIGN(
          const std::vector<double> seconds,
          SecondsOfExchanges(me, {{.kind = kind, .times = kTimes, .bytes = bytes}}, kRuns));
      EXPECT_THAT(seconds, AllOf(SizeIs(kRuns), ::testing::Each(AllOf(Gt(0), Lt(60)))));
      const SentBytes sent = SentIn(me, kind);
      EXPECT_EQ(sent.operations, kTimes * (kRuns + 1));
      const bool sends = kind != CollectiveKind::kBroadcast || me.rank() == 0;
      EXPECT_EQ(sent.bytes, sends ? bytes * sent.operations : 0)
          << trainer::CollectiveKindName(kind);
    });
  }
}

TEST_P(SecondsOfExchangesTest, MessagesGoOverEachBoundaryBothWays) {
  trainer::RunThreadRanks(GetParam(), [](Communicator& me) {
    ASSERT_OK(SecondsOfExchanges(me, {{.kind = CollectiveKind::kSend, .times = 4, .bytes = 100}},
                                 /*runs=*/1));
    const bool is_at_an_end = me.rank() == 0 || me.rank() + 1 == me.num_ranks();
    const SentBytes sent = SentIn(me, CollectiveKind::kSend);
    EXPECT_EQ(sent.operations, (is_at_an_end ? 1 : 2) * 4 * 2);
    EXPECT_EQ(sent.bytes, 100 * sent.operations);
    EXPECT_EQ(SentIn(me, CollectiveKind::kReceive).operations, sent.operations);
  });
}

TEST_P(SecondsOfExchangesTest, AllRanksHaveTheSameTimes) {
  std::vector<std::vector<double>> of_ranks(static_cast<size_t>(GetParam()));
  trainer::RunThreadRanks(GetParam(), [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        of_ranks[static_cast<size_t>(me.rank())],
        SecondsOfExchanges(me,
                           {{.kind = CollectiveKind::kAllReduce, .times = 1, .bytes = 1 << 16},
                            {.kind = CollectiveKind::kSend, .times = 2, .bytes = 1 << 10}},
                           /*runs=*/3));
  });
  EXPECT_THAT(of_ranks, ::testing::Each(AllOf(SizeIs(3), of_ranks.front())));
}

}  // namespace
}  // namespace gemini::bench
