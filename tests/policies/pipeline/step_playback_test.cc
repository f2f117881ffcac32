// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/step_playback.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "policies/pipeline/pipeline_schedule.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = PlayedExchange::Kind;

// What a rank does, written down action by action.
class Actions {
 public:
  Actions& Compute(double seconds) {
    made_.actions.push_back({.kind = RankAction::Kind::kCompute, .seconds = seconds});
    return *this;
  }
  Actions& Begin(PlayedExchange exchange) {
    const auto index = static_cast<int32_t>(made_.exchanges.size());
    made_.exchanges.push_back(std::move(exchange));
    made_.actions.push_back({.kind = RankAction::Kind::kBegin, .exchange = index});
    return *this;
  }
  Actions& Await(int32_t exchange) {
    made_.actions.push_back({.kind = RankAction::Kind::kAwait, .exchange = exchange});
    return *this;
  }
  // Begins and awaits it.
  Actions& Exchange(PlayedExchange exchange) {
    Begin(std::move(exchange));
    return Await(static_cast<int32_t>(made_.exchanges.size()) - 1);
  }
  operator RankActions() const { return made_; }  // NOLINT: it stands for it.

 private:
  RankActions made_;
};

PlayedExchange Sum(std::vector<int64_t> ranks, double latency, double work) {
  return {
      .ranks = std::move(ranks), .latency_seconds = latency, .work_seconds = work, .site = "sum"};
}
PlayedExchange Message(Kind kind, int64_t other, double latency = 0, double work = 0) {
  return {.kind = kind,
          .ranks = {other},
          .latency_seconds = latency,
          .work_seconds = work,
          .site = "hidden states"};
}

std::vector<PlayedRank> Played(const std::vector<RankActions>& ranks, double processors) {
  absl::StatusOr<std::vector<PlayedRank>> played = PlayStep(ranks, processors);
  EXPECT_OK(played);
  if (!played.ok()) return std::vector<PlayedRank>(ranks.size());
  for (const PlayedRank& rank : *played) {
    EXPECT_NEAR(
        rank.end_seconds,
        rank.computing_seconds + rank.sharing_seconds + rank.exchange_seconds + rank.idle_seconds,
        1e-9);
  }
  return *std::move(played);
}

TEST(StepPlaybackTest, ACollectiveRunsFromWhenItsLastRankHasBegunIt) {
  const auto played = Played({Actions().Compute(1).Exchange(Sum({0, 1}, 0.5, 2)),
                              Actions().Compute(4).Exchange(Sum({0, 1}, 0.5, 2)).Compute(1)},
                             /*processors=*/2);
  EXPECT_NEAR(played[0].end_seconds, 4 + 0.5 + 2, 1e-9);
  EXPECT_NEAR(played[0].computing_seconds, 1, 1e-9);
  EXPECT_NEAR(played[0].idle_seconds, 3, 1e-9);
  EXPECT_NEAR(played[0].exchange_seconds, 2.5, 1e-9);
  EXPECT_NEAR(played[1].end_seconds, 7.5, 1e-9);
  EXPECT_NEAR(played[1].idle_seconds, 0, 1e-9);
}

TEST(StepPlaybackTest, WhoWaitsLeavesItsProcessorToOthers) {
  // Four ranks on two processors: each has half of one, until the short ones wait.
  const RankActions brief = Actions().Compute(1).Exchange(Sum({0, 1, 2, 3}, 0, 0));
  const RankActions lasting = Actions().Compute(3).Exchange(Sum({0, 1, 2, 3}, 0, 0));
  const auto played = Played({brief, brief, lasting, lasting}, /*processors=*/2);
  EXPECT_NEAR(played[2].end_seconds, 2 + 2, 1e-9);
  EXPECT_NEAR(played[2].sharing_seconds, 1, 1e-9);
  EXPECT_NEAR(played[0].idle_seconds, 2, 1e-9);
}

TEST(StepPlaybackTest, TheWorkOfAnExchangeTakesAProcessorAndItsLatencyDoesNot) {
  const auto ends = [](double latency, double work) {
    // The third rank computes while the other two exchange.
    return Played({Actions().Exchange(Sum({0, 1}, latency, work)),
                   Actions().Exchange(Sum({0, 1}, latency, work)), Actions().Compute(3)},
                  /*processors=*/1)[2]
        .end_seconds;
  };
  EXPECT_NEAR(ends(/*latency=*/2, /*work=*/0), 3, 1e-9);
  EXPECT_NEAR(ends(/*latency=*/0, /*work=*/0.5), 4, 1e-9);
}

TEST(StepPlaybackTest, WhatIsBegunRunsBesideWhatIsComputed) {
  const RankActions ahead = Actions().Begin(Sum({0, 1}, 0, 2)).Compute(3).Await(0);
  EXPECT_NEAR(Played({ahead, ahead}, /*processors=*/4)[0].end_seconds, 3, 1e-9);
  EXPECT_NEAR(Played({ahead, ahead}, /*processors=*/2)[0].end_seconds, 5, 1e-9);
}

TEST(StepPlaybackTest, CollectivesOfARankRunOneAtATimeAndMessagesBesideThem) {
  const RankActions two = Actions().Begin(Sum({0, 1}, 1, 0)).Begin(Sum({0, 1}, 1, 0)).Await(1);
  EXPECT_NEAR(Played({two, two}, /*processors=*/8)[0].end_seconds, 2, 1e-9);
  const auto played = Played({Actions().Begin(Message(Kind::kSend, 1)).Exchange(Sum({0, 1}, 1, 0)),
                              Actions()
                                  .Begin(Message(Kind::kReceive, 0, /*latency=*/1))
                                  .Exchange(Sum({0, 1}, 1, 0))
                                  .Await(0)},
                             /*processors=*/8);
  EXPECT_NEAR(played[1].end_seconds, 1, 1e-9);
}

TEST(StepPlaybackTest, AMessageWaitsForItsSenderAndMessagesOfATagKeepTheirOrder) {
  const auto played = Played({Actions()
                                  .Compute(1)
                                  .Begin(Message(Kind::kSend, 1))
                                  .Compute(1)
                                  .Begin(Message(Kind::kSend, 1)),
                              Actions()
                                  .Begin(Message(Kind::kReceive, 0, 0.25, 0.5))
                                  .Begin(Message(Kind::kReceive, 0, 0.25, 0.5))
                                  .Await(0)
                                  .Await(1)},
                             /*processors=*/2);
  EXPECT_NEAR(played[0].end_seconds, 2, 1e-9);  // Nobody waits for what it sends.
  EXPECT_NEAR(played[1].end_seconds, 2.75, 1e-9);
  EXPECT_NEAR(played[1].exchange_seconds, 1.5, 1e-9);
}

// tools/bench/weak_scaling.py plays 1F1B in whole numbers, which are in its test, too.
TEST(StepPlaybackTest, StagesShareProcessorsAsWeakScalingCountsThem) {
  constexpr double kForward = 1, kBackward = 2;
  struct Case {
    int64_t ranks, micro_batches;
    double processors, seconds;
  };
  for (const Case& c : {Case{3, 4, 2, 21}, Case{4, 8, 2, 51}, Case{8, 8, 2, 99}, Case{8, 8, 3, 70},
                        Case{8, 8, 8, 45}}) {
    const PipelineTaskLists lists = *PipelineLists(
        PipelineSchedule::k1f1b, {.ranks = c.ranks, .micro_batches = c.micro_batches});
    std::vector<RankActions> ranks;
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      Actions actions;
      for (const PipelineTask& task : lists[static_cast<size_t>(rank)]) {
        const bool is_forward = task.kind == PipelineTask::Kind::kForward;
        const int64_t from = is_forward ? rank - 1 : rank + 1;
        const int64_t to = is_forward ? rank + 1 : rank - 1;
        if (from >= 0 && from < c.ranks) actions.Exchange(Message(Kind::kReceive, from));
        actions.Compute(is_forward ? kForward : kBackward);
        if (to >= 0 && to < c.ranks) actions.Begin(Message(Kind::kSend, to));
      }
      ranks.push_back(actions);
    }
    double end = 0;
    for (const PlayedRank& rank : Played(ranks, c.processors))
      end = std::max(end, rank.end_seconds);
    EXPECT_NEAR(end, c.seconds, 1e-6) << c.ranks << " ranks, " << c.processors << " processors";
  }
}

TEST(StepPlaybackTest, GroupsOfOtherRanksDoNotMeet) {
  const auto of = [](int64_t group, std::vector<int64_t> ranks) {
    PlayedExchange sum = Sum(std::move(ranks), 1, 0);
    sum.group = group;
    return sum;
  };
  const auto played =
      Played({Actions().Exchange(of(1, {0, 1})), Actions().Exchange(of(1, {0, 1})),
              Actions().Compute(5).Exchange(of(1, {2, 3})), Actions().Exchange(of(1, {2, 3}))},
             /*processors=*/8);
  EXPECT_NEAR(played[0].end_seconds, 1, 1e-9);
  EXPECT_NEAR(played[3].end_seconds, 6, 1e-9);
}

TEST(StepPlaybackTest, ADeadlockNamesWhoWaitsForWhat) {
  PlayedExchange other = Sum({0, 1}, 0, 0);
  other.group = 7;
  other.site = "norm";
  EXPECT_THAT(PlayStep(std::vector<RankActions>{Actions().Compute(1).Exchange(Sum({0, 1}, 0, 0)),
                                                Actions().Exchange(other)},
                       1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("would never end"),
                             HasSubstr("rank 0 waits at its action 2 for sum with ranks 0, 1"),
                             HasSubstr("rank 1 waits at its action 1 for norm with ranks 0, 1"))));
  // A message that stands behind a collective is not begun before it.
  EXPECT_THAT(PlayStep(std::vector<RankActions>{Actions()
                                                    .Begin(Sum({0, 1}, 0, 0))
                                                    .Begin(Sum({0, 1}, 0, 0))
                                                    .Begin(Message(Kind::kSend, 1)),
                                                Actions().Exchange(Message(Kind::kReceive, 0))},
                       1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1 waits at its action 1 for hidden states with rank 0")));
}

TEST(StepPlaybackTest, WhatIsNoStepIsRefused) {
  const auto refused = [](const RankActions& actions, const char* message) {
    EXPECT_THAT(PlayStep(std::vector<RankActions>{actions}, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refused(Actions().Compute(-1), "-1 seconds");
  refused(Actions().Await(0), "exchange 0 of 0 is awaited and not begun");
  refused(Actions().Exchange(Sum({1}, 0, 0)), "exchange sum with ranks 1");
  refused(Actions().Exchange(Sum({0}, -1, 0)), "exchange sum with ranks 0");
  EXPECT_THAT(PlayStep({}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 processors")));
}

}  // namespace
}  // namespace gemini::policies
