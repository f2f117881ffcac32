// SPDX-License-Identifier: Apache-2.0
// The schedules against what their papers promise of them, by playing their lists.
#include "policies/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "policies/pipeline/pipeline_playback.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;
using Kind = PipelineTask::Kind;

constexpr PipelineTimes kUneven = {.forward_ns = 20, .backward_ns = 30, .weights_ns = 15};

// "F0.3": the forward pass of chunk 0, micro-batch 3.
std::string Text(const std::vector<PipelineTask>& tasks) {
  std::string text;
  for (const PipelineTask& task : tasks) {
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    task.kind == Kind::kForward    ? "F"
                    : task.kind == Kind::kBackward ? "B"
                                                   : "W",
                    task.chunk, ".", task.micro_batch);
  }
  return text;
}

struct Played {
  int64_t idle_ns = 0;  // Of the rank that waits longest.
  std::vector<int64_t> most_live;
};
Played Play(PipelineSchedule schedule, const PipelineShape& shape, const PipelineTimes& times) {
  Played played;
  const absl::StatusOr<PipelineTaskLists> lists = PipelineLists(schedule, shape);
  EXPECT_OK(lists);
  if (!lists.ok()) return played;
  const auto ranks = PlayPipeline(schedule, shape, *lists, times);
  EXPECT_OK(ranks);
  if (!ranks.ok()) return played;
  for (const RankPlayback& rank : *ranks) {
    played.idle_ns = std::max(played.idle_ns, rank.idle_ns());
    played.most_live.push_back(rank.most_live);
    EXPECT_EQ(rank.busy_ns, shape.micro_batches * shape.chunks *
                                (times.forward_ns + times.backward_ns + times.weights_ns));
  }
  return played;
}

std::string Named(PipelineSchedule schedule, const PipelineShape& shape) {
  return absl::StrCat(PipelineScheduleName(schedule), " p ", shape.ranks, " v ", shape.chunks,
                      " m ", shape.micro_batches);
}

TEST(PipelineScheduleTest, TheOrderOfSmallOnes) {
  ASSERT_OK_AND_ASSIGN(const PipelineTaskLists plain,
                       PipelineLists(PipelineSchedule::k1f1b, {3, 1, 4}));
  EXPECT_EQ(Text(plain[0]), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
  EXPECT_EQ(Text(plain[1]), "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3");
  EXPECT_EQ(Text(plain[2]), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3");
  ASSERT_OK_AND_ASSIGN(const PipelineTaskLists interleaved,
                       PipelineLists(PipelineSchedule::kInterleaved, {2, 2, 4}));
  EXPECT_EQ(Text(interleaved[0]),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3");
  EXPECT_EQ(Text(interleaved[1]),
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3");
  ASSERT_OK_AND_ASSIGN(const PipelineTaskLists zero,
                       PipelineLists(PipelineSchedule::kZbH1, {2, 1, 3}));
  EXPECT_EQ(Text(zero[0]), "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2");
  EXPECT_EQ(Text(zero[1]), "F0.0 B0.0 F0.1 B0.1 W0.0 F0.2 B0.2 W0.1 W0.2");
}

TEST(PipelineScheduleTest, IdleTimeAndLiveActivationsAreThoseOfTheTable) {
  const int64_t whole = kUneven.forward_ns + kUneven.backward_ns + kUneven.weights_ns;
  for (int64_t p = 2; p <= 16; ++p) {
    for (int64_t m = 1; m <= 64; ++m) {
      const PipelineShape shape = {p, 1, m};
      const Played plain = Play(PipelineSchedule::k1f1b, shape, kUneven);
      EXPECT_EQ(plain.idle_ns, (p - 1) * whole) << Named(PipelineSchedule::k1f1b, shape);
      for (int64_t r = 0; r < p; ++r) EXPECT_EQ(plain.most_live[r], std::min(p - r, m));

      // Below as many micro-batches as are live at most, their pipelines never fill.
      const Played h1 = Play(PipelineSchedule::kZbH1, shape, kUneven);
      const Played h2 = Play(PipelineSchedule::kZbH2, shape, kUneven);
      for (int64_t r = 0; r < p; ++r) {
        EXPECT_EQ(h1.most_live[r], std::min(p, m)) << Named(PipelineSchedule::kZbH1, shape);
        EXPECT_EQ(h2.most_live[r], std::min(2 * p - 1, m)) << Named(PipelineSchedule::kZbH2, shape);
      }
      if (m >= p) {
        EXPECT_EQ(h1.idle_ns,
                  (p - 1) * (kUneven.forward_ns + kUneven.backward_ns - kUneven.weights_ns))
            << Named(PipelineSchedule::kZbH1, shape);
      }
      if (m >= 2 * p - 1) {
        EXPECT_EQ(h2.idle_ns,
                  (p - 1) * (kUneven.forward_ns + kUneven.backward_ns - 2 * kUneven.weights_ns))
            << Named(PipelineSchedule::kZbH2, shape);
      }
      EXPECT_LE(h1.idle_ns, plain.idle_ns);
      EXPECT_LE(h2.idle_ns, h1.idle_ns);
    }
  }
}

TEST(PipelineScheduleTest, InterleavingDividesTheIdleTimeByTheChunks) {
  const int64_t chunk = kUneven.forward_ns + kUneven.backward_ns + kUneven.weights_ns;
  for (int64_t p = 2; p <= 16; ++p) {
    for (int64_t v = 1; v <= 4; ++v) {
      for (int64_t m = p; m <= 64; m += p) {
        const PipelineShape shape = {p, v, m};
        const Played played = Play(PipelineSchedule::kInterleaved, shape, kUneven);
        // Of chunks: a stage takes v times as long.
        EXPECT_EQ(played.idle_ns, (p - 1) * chunk) << Named(PipelineSchedule::kInterleaved, shape);
        for (int64_t r = 0; r < p; ++r) {
          const int64_t warm_up = std::min(2 * (p - r - 1) + (v - 1) * p, m * v);
          EXPECT_EQ(played.most_live[r], std::min(warm_up + 1, m * v));
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, ZbvHasNoIdleTimeAndLivesOn1f1bsMemory) {
  for (int64_t p = 1; p <= 16; ++p) {
    for (int64_t m = 1; m <= 64; ++m) {
      const PipelineShape shape = {p, 2, m};
      const Played played = Play(PipelineSchedule::kZbV, shape, {});
      if (m >= 2 * p) {
        EXPECT_EQ(played.idle_ns, 0) << Named(PipelineSchedule::kZbV, shape);
      }
      // p micro-batches of two chunks each.
      for (const int64_t live : played.most_live) {
        EXPECT_EQ(live, 2 * std::min(p, m)) << Named(PipelineSchedule::kZbV, shape);
      }
    }
  }
}

// Returns, in order, which stage's output or input of which micro-batch a rank sends to a neighbour
// in one direction, or expects from it: what it sends is of the stage, what it expects of the next.
std::vector<std::pair<int64_t, int64_t>> Messages(const PipelineShape& shape, int64_t rank,
                                                  const std::vector<PipelineTask>& tasks, Kind kind,
                                                  bool sends) {
  const int64_t last = shape.ranks * shape.chunks - 1;
  std::vector<std::pair<int64_t, int64_t>> messages;
  for (const PipelineTask& task : tasks) {
    if (task.kind != kind) continue;
    const int64_t stage = task.chunk * shape.ranks + rank;
    const int64_t from = sends ? stage : kind == Kind::kForward ? stage - 1 : stage + 1;
    const int64_t to = kind == Kind::kForward ? from + 1 : from - 1;
    if (std::min(from, to) >= 0 && std::max(from, to) <= last) {
      messages.emplace_back(from, task.micro_batch);
    }
  }
  return messages;
}

// What a transport without tags needs (trainer/parallel/nccl_paths.h).
TEST(PipelineScheduleTest, NeighboursReceiveInTheOrderInWhichTheySend) {
  int64_t num_messages = 0;
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t chunks = 1; chunks <= 4; ++chunks) {
      for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
        const PipelineSchedule schedule =
            chunks == 1 ? PipelineSchedule::k1f1b : PipelineSchedule::kInterleaved;
        const PipelineShape shape = {
            .ranks = ranks, .chunks = chunks, .micro_batches = micro_batches};
        if (!CheckPipelineShape(schedule, shape).ok()) continue;
        ASSERT_OK_AND_ASSIGN(const PipelineTaskLists lists, PipelineLists(schedule, shape));
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const Kind kind : {Kind::kForward, Kind::kBackward}) {
            const int64_t to =
                kind == Kind::kForward ? (rank + 1) % ranks : (rank + ranks - 1) % ranks;
            const auto sent = Messages(shape, rank, lists[static_cast<size_t>(rank)], kind, true);
            ASSERT_EQ(sent, Messages(shape, to, lists[static_cast<size_t>(to)], kind, false))
                << Named(schedule, shape) << ", from rank " << rank;
            num_messages += static_cast<int64_t>(sent.size());
          }
        }
      }
    }
  }
  EXPECT_GT(num_messages, 10'000);
}

TEST(PipelineScheduleTest, WhatHasNoListsIsRefusedWithTheNumbers) {
  const auto refused = [](PipelineSchedule schedule, const PipelineShape& shape,
                          const std::string& text) {
    EXPECT_THAT(PipelineLists(schedule, shape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(PipelineSchedule::kInterleaved, {4, 2, 6},
          "6 micro-batches a step for 4 ranks: a multiple of the ranks is needed, such as 8");
  refused(PipelineSchedule::k1f1b, {4, 2, 6}, "schedule 1f1b with 2 chunks a rank: it has 1");
  refused(PipelineSchedule::kZbV, {4, 1, 6}, "schedule zb-v with 1 chunks a rank: it has 2");
  refused(PipelineSchedule::k1f1b, {0, 1, 6}, "0 ranks");
  refused(PipelineSchedule::k1f1b, {2, 1, 0}, "0 micro-batches");
}

TEST(PipelineScheduleTest, NamesAreReadAsTheyAreWritten) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, ParsePipelineSchedule(name));
    EXPECT_EQ(PipelineScheduleName(schedule), name);
    EXPECT_EQ(SplitsBackward(schedule), name[0] == 'z');
  }
  EXPECT_THAT(ParsePipelineSchedule("gpipe"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'gpipe': 1f1b, interleaved, zb-h1, zb-h2, zb-v")));
}

}  // namespace
}  // namespace gemini::policies
