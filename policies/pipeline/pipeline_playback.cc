// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/pipeline_playback.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gemini::policies {
namespace {

using Kind = PipelineTask::Kind;

// A task of the whole pipeline.
struct StageTask {
  Kind kind;
  int64_t stage;  // A virtual one.
  int64_t micro_batch;
};

class Playback {
 public:
  Playback(PipelineSchedule schedule, const PipelineShape& shape, const PipelineTimes& times)
      : schedule_(schedule),
        shape_(shape),
        times_(times),
        ends_(3 * num_stages() * shape.micro_batches, kNever) {}

  // Whether each rank has all tasks of its chunks once, and no other.
  absl::Status Check(const PipelineTaskLists& lists) const {
    if (static_cast<int64_t>(lists.size()) != shape_.ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("lists of ", lists.size(), " ranks for a pipeline of ", shape_.ranks));
    }
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      std::vector<bool> seen(3 * shape_.chunks * shape_.micro_batches, false);
      for (const PipelineTask& task : lists[rank]) {
        if (!IsKnown(task)) return Bad(rank, task, "is no task of this pipeline");
        const int64_t index =
            (static_cast<int64_t>(task.kind) * shape_.chunks + task.chunk) * shape_.micro_batches +
            task.micro_batch;
        if (seen[index]) return Bad(rank, task, "is there twice");
        seen[index] = true;
      }
      for (int64_t i = 0; i < static_cast<int64_t>(seen.size()); ++i) {
        const int64_t row = i / shape_.micro_batches;
        const PipelineTask task = {static_cast<Kind>(row / shape_.chunks),
                                   static_cast<int>(row % shape_.chunks), i % shape_.micro_batches};
        if (!seen[i] && IsKnown(task)) return Bad(rank, task, "is missing");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<RankPlayback>> Play(const PipelineTaskLists& lists) {
    std::vector<RankPlayback> ranks(shape_.ranks);
    std::vector<int64_t> live(shape_.ranks, 0);
    std::vector<size_t> next(shape_.ranks, 0);
    bool went_on = true;
    while (went_on) {
      went_on = false;
      for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
        for (; next[rank] < lists[rank].size(); ++next[rank]) {
          const PipelineTask& task = lists[rank][next[rank]];
          const std::optional<int64_t> ready_ns = Ready(rank, task);
          if (!ready_ns.has_value()) break;
          went_on = true;
          Run(rank, task, *ready_ns, next[rank] == 0, ranks[rank], live[rank]);
        }
      }
    }
    std::string blocked;
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      if (next[rank] == lists[rank].size()) continue;
      absl::StrAppend(&blocked, "; rank ", rank, " waits before its task ", next[rank], ", ",
                      ToString(lists[rank][next[rank]]), ", for ",
                      WaitsFor(rank, lists[rank][next[rank]]));
    }
    if (blocked.empty()) return ranks;
    return absl::InvalidArgumentError(
        absl::StrCat("the tasks of this pipeline never end", blocked));
  }

 private:
  static constexpr int64_t kNever = -1;

  int64_t num_stages() const { return shape_.ranks * shape_.chunks; }

  bool IsKnown(const PipelineTask& task) const {
    return (task.kind != Kind::kBackwardWeights || SplitsBackward(schedule_)) && task.chunk >= 0 &&
           task.chunk < shape_.chunks && task.micro_batch >= 0 &&
           task.micro_batch < shape_.micro_batches;
  }
  static absl::Status Bad(int64_t rank, const PipelineTask& task, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": ", ToString(task), " ", what));
  }

  int64_t& End(const StageTask& task) {
    return ends_[(static_cast<int64_t>(task.kind) * num_stages() + task.stage) *
                     shape_.micro_batches +
                 task.micro_batch];
  }

  // The tasks before this one: the same rank's, then another's.
  struct Needs {
    std::optional<StageTask> own, other;
  };
  Needs NeedsOf(int64_t rank, const PipelineTask& task) const {
    const int64_t stage = VirtualStage(schedule_, shape_, rank, task.chunk);
    const int64_t i = task.micro_batch;
    Needs needs;
    if (task.kind == Kind::kForward) {
      if (stage > 0) needs.other = {Kind::kForward, stage - 1, i};
    } else if (task.kind == Kind::kBackward) {
      needs.own = {Kind::kForward, stage, i};
      if (stage + 1 < num_stages()) needs.other = {Kind::kBackward, stage + 1, i};
    } else {
      needs.own = {Kind::kBackward, stage, i};
    }
    return needs;
  }
  int64_t RankOf(int64_t stage) const {
    const int64_t rank = stage % shape_.ranks;
    return schedule_ == PipelineSchedule::kZbV && stage >= shape_.ranks ? shape_.ranks - 1 - rank
                                                                        : rank;
  }

  // When what the task needs is there; nothing while it is not known.
  std::optional<int64_t> Ready(int64_t rank, const PipelineTask& task) {
    const Needs needs = NeedsOf(rank, task);
    int64_t ready_ns = 0;
    if (needs.own.has_value()) {
      if (End(*needs.own) == kNever) return std::nullopt;
      ready_ns = End(*needs.own);
    }
    if (needs.other.has_value()) {
      if (End(*needs.other) == kNever) return std::nullopt;
      const bool is_sent = RankOf(needs.other->stage) != rank;
      ready_ns = std::max(ready_ns, End(*needs.other) + (is_sent ? times_.transfer_ns : 0));
    }
    return ready_ns;
  }

  std::string WaitsFor(int64_t rank, const PipelineTask& task) {
    const Needs needs = NeedsOf(rank, task);
    const bool is_own = needs.own.has_value() && End(*needs.own) == kNever;
    const StageTask& missing = is_own ? *needs.own : *needs.other;
    const absl::string_view kind = missing.kind == Kind::kForward ? "forward" : "backward";
    return absl::StrCat("the ", kind, " of that micro-batch on rank ", RankOf(missing.stage));
  }

  void Run(int64_t rank, const PipelineTask& task, int64_t ready_ns, bool is_first,
           RankPlayback& own, int64_t& live) {
    const bool splits = SplitsBackward(schedule_);
    int64_t took_ns = times_.forward_ns;
    if (task.kind == Kind::kBackward) {
      took_ns = times_.backward_ns + (splits ? 0 : times_.weights_ns);
    } else if (task.kind == Kind::kBackwardWeights) {
      took_ns = times_.weights_ns;
    }
    const int64_t begin_ns = std::max(ready_ns, own.end_ns);
    if (is_first) own.begin_ns = begin_ns;
    own.end_ns = begin_ns + took_ns;
    own.busy_ns += took_ns;
    End({task.kind, VirtualStage(schedule_, shape_, rank, task.chunk), task.micro_batch}) =
        own.end_ns;
    if (task.kind == Kind::kForward) {
      own.most_live = std::max(own.most_live, ++live);
    } else if (task.kind == (splits ? Kind::kBackwardWeights : Kind::kBackward)) {
      --live;
    }
  }

  const PipelineSchedule schedule_;
  const PipelineShape& shape_;
  const PipelineTimes& times_;
  std::vector<int64_t> ends_;
};

}  // namespace

absl::StatusOr<std::vector<RankPlayback>> PlayPipeline(PipelineSchedule schedule,
                                                       const PipelineShape& shape,
                                                       const PipelineTaskLists& lists,
                                                       const PipelineTimes& times) {
  Playback playback(schedule, shape, times);
  const absl::Status checked = playback.Check(lists);
  if (!checked.ok()) return checked;
  return playback.Play(lists);
}

}  // namespace gemini::policies
