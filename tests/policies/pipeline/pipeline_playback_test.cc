// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/pipeline_playback.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = PipelineTask::Kind;

constexpr PipelineTimes kUneven = {.forward_ns = 20, .backward_ns = 30, .weights_ns = 15};

TEST(PipelinePlaybackTest, ATransferIsWaitedFor) {
  const PipelineShape shape = {2, 1, 1};
  ASSERT_OK_AND_ASSIGN(const PipelineTaskLists lists,
                       PipelineLists(PipelineSchedule::k1f1b, shape));
  PipelineTimes times = kUneven;
  times.transfer_ns = 7;
  ASSERT_OK_AND_ASSIGN(const std::vector<RankPlayback> ranks,
                       PlayPipeline(PipelineSchedule::k1f1b, shape, lists, times));
  EXPECT_EQ(ranks[1].begin_ns, 20 + 7);
  EXPECT_EQ(ranks[1].end_ns, 20 + 7 + 65);
  EXPECT_EQ(ranks[0].end_ns, 20 + 7 + 65 + 7 + 45);
  EXPECT_EQ(ranks[0].idle_ns(), 7 + 65 + 7);
}

TEST(PipelinePlaybackTest, ADeadlockNamesWhoWaitsForWhat) {
  const PipelineShape shape = {2, 1, 2};
  ASSERT_OK_AND_ASSIGN(PipelineTaskLists lists, PipelineLists(PipelineSchedule::k1f1b, shape));
  std::swap(lists[0][0], lists[0][2]);  // A backward pass before its forward pass.
  EXPECT_THAT(PlayPipeline(PipelineSchedule::k1f1b, shape, lists, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("never end"),
                             HasSubstr("rank 0 waits before its task 0, backward of chunk 0, "
                                       "micro-batch 0, for the forward of that micro-batch on "
                                       "rank 0"),
                             HasSubstr("rank 1 waits before its task 0, forward of chunk 0"))));
  lists[0][0] = lists[0][1];
  EXPECT_THAT(PlayPipeline(PipelineSchedule::k1f1b, shape, lists, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0: forward of chunk 0, micro-batch 1 is there twice")));
  lists[0][0] = {Kind::kForward, 1, 0};
  EXPECT_THAT(PlayPipeline(PipelineSchedule::k1f1b, shape, lists, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is no task")));
  lists[0].erase(lists[0].begin());
  EXPECT_THAT(PlayPipeline(PipelineSchedule::k1f1b, shape, lists, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("backward of chunk 0, micro-batch 0 is missing")));
  lists.pop_back();
  EXPECT_THAT(PlayPipeline(PipelineSchedule::k1f1b, shape, lists, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lists of 1 ranks")));
}

// By the graph of what comes before what, where the player knows times: tasks can be removed one
// after another that have nothing left before them, or there is a cycle.
bool Ends(PipelineSchedule schedule, const PipelineShape& shape, const PipelineTaskLists& lists) {
  using Node = std::tuple<Kind, int64_t, int64_t>;  // Kind, virtual stage, micro-batch.
  std::map<Node, std::set<Node>> before;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    const Node* last = nullptr;
    for (const PipelineTask& task : lists[rank]) {
      const int64_t stage = VirtualStage(schedule, shape, rank, task.chunk);
      const auto [at, is_new] = before.try_emplace({task.kind, stage, task.micro_batch});
      if (last != nullptr) at->second.insert(*last);
      last = &at->first;
      const int64_t i = task.micro_batch;
      if (task.kind == Kind::kForward && stage > 0) {
        at->second.insert({Kind::kForward, stage - 1, i});
      } else if (task.kind == Kind::kBackward) {
        at->second.insert({Kind::kForward, stage, i});
        if (stage + 1 < shape.ranks * shape.chunks) {
          at->second.insert({Kind::kBackward, stage + 1, i});
        }
      } else if (task.kind == Kind::kBackwardWeights) {
        at->second.insert({Kind::kBackward, stage, i});
      }
    }
  }
  std::set<Node> gone;
  size_t count;
  do {
    count = gone.size();
    for (const auto& [node, needs] : before) {
      if (std::ranges::includes(gone, needs)) gone.insert(node);
    }
  } while (gone.size() > count);
  return gone.size() == before.size();
}

TEST(PipelinePlaybackTest, EachDeadlockOfMutilatedListsIsFoundAndNothingElseIsRefused) {
  constexpr PipelineSchedule kAll[] = {PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved,
                                       PipelineSchedule::kZbH1, PipelineSchedule::kZbH2,
                                       PipelineSchedule::kZbV};
  std::mt19937_64 random(29);
  const auto below = [&random](int64_t end) { return static_cast<int64_t>(random() % end); };
  int ended = 0, deadlocks = 0, incomplete = 0;
  for (int round = 0; round < 10'000; ++round) {
    const PipelineSchedule schedule = kAll[below(5)];
    PipelineShape shape = {2 + below(3), 1, 1 + below(4)};
    if (schedule == PipelineSchedule::kInterleaved) {
      shape = {2, 1 + below(2), 2 * (1 + below(2))};
    } else if (schedule == PipelineSchedule::kZbV) {
      shape.chunks = 2;
    }
    ASSERT_OK_AND_ASSIGN(PipelineTaskLists lists, PipelineLists(schedule, shape));
    std::vector<PipelineTask>& list = lists[below(shape.ranks)];
    const auto any = [&] { return below(static_cast<int64_t>(list.size())); };
    bool is_complete = true;
    if (below(10) == 0) {
      is_complete = false;
      if (below(2) == 0) {
        list.erase(list.begin() + any());
      } else {
        list.insert(list.begin() + any(), list[any()]);
      }
    } else {
      for (int64_t swaps = 1 + below(3); swaps > 0; --swaps) {
        const int64_t at = below(static_cast<int64_t>(list.size()) - 1);
        std::swap(list[at], list[below(2) == 0 ? at + 1 : any()]);
      }
    }
    const bool ends = is_complete && Ends(schedule, shape, lists);
    const auto played = PlayPipeline(schedule, shape, lists, kUneven);
    ASSERT_EQ(played.ok(), ends) << PipelineScheduleName(schedule) << ": " << played.status();
    ++(ends ? ended : is_complete ? deadlocks : incomplete);
  }
  EXPECT_GE(ended, 1000);
  EXPECT_GE(deadlocks, 3000);
  EXPECT_GE(incomplete, 500);
}

}  // namespace
}  // namespace gemini::policies
