// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gemini::policies {
namespace {

using Kind = PipelineTask::Kind;

constexpr std::array<absl::string_view, 5> kNames = {"1f1b", "interleaved", "zb-h1", "zb-h2",
                                                     "zb-v"};

// The k-th forward or backward pass of a rank, of any chunk: p micro-batches go through its first
// chunk (in a backward pass the last), then the same p through the next, and so on.
PipelineTask Interleaved(Kind kind, int64_t k, const PipelineShape& shape) {
  const int64_t in_group = k % (shape.ranks * shape.chunks);
  const int64_t chunk = in_group / shape.ranks;
  return {kind, static_cast<int>(kind == Kind::kForward ? chunk : shape.chunks - 1 - chunk),
          k / (shape.ranks * shape.chunks) * shape.ranks + k % shape.ranks};
}

// Interleaved. With one chunk a rank the passes are in the order of the micro-batches, and this is
// 1F1B where `warm_up` is as short as it can be.
std::vector<PipelineTask> OneForwardOneBackward(const PipelineShape& shape, int64_t warm_up) {
  const int64_t passes = shape.micro_batches * shape.chunks;
  warm_up = std::min(warm_up, passes);
  std::vector<PipelineTask> tasks;
  for (int64_t k = 0; k < warm_up; ++k) tasks.push_back(Interleaved(Kind::kForward, k, shape));
  for (int64_t k = 0; k < passes; ++k) {
    if (warm_up + k < passes) {
      tasks.push_back(Interleaved(Kind::kForward, warm_up + k, shape));
    }
    tasks.push_back(Interleaved(Kind::kBackward, k, shape));
  }
  return tasks;
}

// 1F1B whose weights' gradients wait: as many as `most_waiting`, and after the last forward pass
// each backward pass is followed by one of them.
std::vector<PipelineTask> WithWaitingWeights(const PipelineShape& shape, int64_t warm_up,
                                             int64_t most_waiting) {
  std::vector<PipelineTask> tasks;
  int64_t backwards = 0, weights = 0;
  for (const PipelineTask& task : OneForwardOneBackward(shape, warm_up)) {
    tasks.push_back(task);
    if (task.kind != Kind::kBackward) continue;
    ++backwards;
    const bool forwards_left =
        backwards + std::min(warm_up, shape.micro_batches) < shape.micro_batches;
    if (backwards - weights > most_waiting || !forwards_left) {
      tasks.push_back({Kind::kBackwardWeights, 0, weights++});
    }
  }
  while (weights < shape.micro_batches) tasks.push_back({Kind::kBackwardWeights, 0, weights++});
  return tasks;
}

// Makes zb-v for tasks that all take one unit of time. Each rank has a forward and a backward pass
// of each chunk every six units, at moments that never meet, and fills the others with weights'
// gradients, and before these are there with forward passes that come later in the order.
class ZbvMaker {
 public:
  explicit ZbvMaker(const PipelineShape& shape)
      : shape_(shape), ends_(2 * 2 * shape.ranks * shape.micro_batches, kNever) {}

  PipelineTaskLists Make() {
    const int64_t p = shape_.ranks;
    for (int64_t rank = 0; rank < p; ++rank) ranks_.emplace_back().order = Order(rank);
    PipelineTaskLists lists(p);
    int64_t left = 6 * p * shape_.micro_batches;
    for (now_ = 0; left > 0; ++now_) {
      for (int64_t rank = 0; rank < p; ++rank) {
        const std::optional<PipelineTask> task = Next(rank);
        if (!task.has_value()) continue;
        lists[rank].push_back(*task);
        --left;
      }
    }
    return lists;
  }

 private:
  static constexpr int64_t kNever = -1;
  struct Rank {
    std::deque<PipelineTask> order;    // Forward and backward passes that are left.
    std::deque<PipelineTask> weights;  // That wait.
    int64_t live = 0;                  // Chunks of micro-batches whose activations it holds.
  };

  std::deque<PipelineTask> Order(int64_t rank) const {
    const int64_t p = shape_.ranks;
    std::vector<std::pair<int64_t, PipelineTask>> timed;
    for (int64_t i = 0; i < shape_.micro_batches; ++i) {
      const int64_t begin = 6 * i, turn = 6 * (p - 1);
      timed.push_back({begin + rank, {Kind::kForward, 0, i}});
      timed.push_back({begin + p + 5 * (p - 1 - rank), {Kind::kForward, 1, i}});
      timed.push_back({begin + turn + 2 + rank, {Kind::kBackward, 1, i}});
      timed.push_back({begin + turn + 2 + p + 5 * (p - 1 - rank), {Kind::kBackward, 0, i}});
    }
    std::ranges::sort(timed, {}, [](const auto& one) { return one.first; });
    std::deque<PipelineTask> order;
    for (const auto& [time, task] : timed) order.push_back(task);
    return order;
  }

  // By the end of a forward or backward pass of a virtual stage.
  int64_t& End(Kind kind, int64_t stage, int64_t micro_batch) {
    const int64_t row = (kind == Kind::kForward ? 0 : 2 * shape_.ranks) + stage;
    return ends_[row * shape_.micro_batches + micro_batch];
  }
  bool Ended(Kind kind, int64_t stage, int64_t micro_batch) {
    const int64_t end = End(kind, stage, micro_batch);
    return end != kNever && end <= now_;
  }

  // Whether what the pass needs is there, and `spare` more activations would have room.
  bool CanBegin(int64_t rank, const PipelineTask& task, int64_t spare) {
    const int64_t stage = VirtualStage(PipelineSchedule::kZbV, shape_, rank, task.chunk);
    const int64_t i = task.micro_batch;
    if (task.kind == Kind::kForward) {
      return ranks_[rank].live + spare < 2 * shape_.ranks &&
             (stage == 0 || Ended(Kind::kForward, stage - 1, i));
    }
    return Ended(Kind::kForward, stage, i) &&
           (stage == 2 * shape_.ranks - 1 || Ended(Kind::kBackward, stage + 1, i));
  }

  std::optional<PipelineTask> Next(int64_t rank) {
    Rank& own = ranks_[rank];
    auto next = own.order.begin();
    if (next == own.order.end() || !CanBegin(rank, *next, /*spare=*/0)) {
      if (!own.weights.empty()) {
        const PipelineTask task = own.weights.front();
        own.weights.pop_front();
        --own.live;
        return task;
      }
      next = std::ranges::find_if(own.order, [](const PipelineTask& task) {
        return task.kind == Kind::kForward && task.chunk == 0;
      });
      // What comes back up the ranks needs room, too, or nothing ever ends.
      if (next == own.order.end() || !CanBegin(rank, *next, /*spare=*/1)) return std::nullopt;
    }
    const PipelineTask task = *next;
    own.order.erase(next);
    const int64_t stage = VirtualStage(PipelineSchedule::kZbV, shape_, rank, task.chunk);
    End(task.kind, stage, task.micro_batch) = now_ + 1;
    if (task.kind == Kind::kForward) {
      ++own.live;
    } else {
      own.weights.push_back({Kind::kBackwardWeights, task.chunk, task.micro_batch});
    }
    return task;
  }

  const PipelineShape shape_;
  std::vector<int64_t> ends_;
  std::vector<Rank> ranks_;
  int64_t now_ = 0;
};

}  // namespace

absl::string_view PipelineScheduleName(PipelineSchedule schedule) {
  return kNames[static_cast<size_t>(schedule)];
}

absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) {
    return static_cast<PipelineSchedule>(std::distance(kNames.begin(), found));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no pipeline schedule '", name, "': ", absl::StrJoin(kNames, ", ")));
}

bool SplitsBackward(PipelineSchedule schedule) {
  return schedule != PipelineSchedule::k1f1b && schedule != PipelineSchedule::kInterleaved;
}

std::string ToString(const PipelineTask& task) {
  const absl::string_view kind = task.kind == Kind::kForward    ? "forward"
                                 : task.kind == Kind::kBackward ? "backward"
                                                                : "weights' backward";
  return absl::StrCat(kind, " of chunk ", task.chunk, ", micro-batch ", task.micro_batch);
}

int64_t VirtualStage(PipelineSchedule schedule, const PipelineShape& shape, int64_t rank,
                     int64_t chunk) {
  if (schedule == PipelineSchedule::kZbV && chunk == 1) return 2 * shape.ranks - 1 - rank;
  return chunk * shape.ranks + rank;
}

absl::Status CheckPipelineShape(PipelineSchedule schedule, const PipelineShape& shape) {
  const absl::string_view name = PipelineScheduleName(schedule);
  if (shape.ranks < 1 || shape.chunks < 1 || shape.micro_batches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pipeline of ", shape.ranks, " ranks with ", shape.chunks,
                     " chunks each and ", shape.micro_batches, " micro-batches: at least 1 each"));
  }
  const int64_t chunks = schedule == PipelineSchedule::kZbV ? 2 : 1;
  if (schedule != PipelineSchedule::kInterleaved && shape.chunks != chunks) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", name, " with ", shape.chunks,
                                                   " chunks a rank: it has ", chunks,
                                                   "; interleaved takes any number"));
  }
  if (schedule == PipelineSchedule::kInterleaved && shape.micro_batches % shape.ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule interleaved with ", shape.micro_batches, " micro-batches a step for ",
        shape.ranks, " ranks: a multiple of the ranks is needed, such as ",
        (shape.micro_batches / shape.ranks + 1) * shape.ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<PipelineTaskLists> PipelineLists(PipelineSchedule schedule,
                                                const PipelineShape& shape) {
  const absl::Status checked = CheckPipelineShape(schedule, shape);
  if (!checked.ok()) return checked;
  if (schedule == PipelineSchedule::kZbV) return ZbvMaker(shape).Make();
  PipelineTaskLists lists;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    const int64_t behind = shape.ranks - 1 - rank;  // Ranks that a micro-batch has yet to reach.
    switch (schedule) {
      case PipelineSchedule::kInterleaved:
        lists.push_back(
            OneForwardOneBackward(shape, 2 * behind + (shape.chunks - 1) * shape.ranks));
        break;
      case PipelineSchedule::kZbH1:
        lists.push_back(WithWaitingWeights(shape, behind, /*most_waiting=*/rank));
        break;
      case PipelineSchedule::kZbH2:
        lists.push_back(WithWaitingWeights(shape, 2 * behind, /*most_waiting=*/2 * rank));
        break;
      default:
        lists.push_back(OneForwardOneBackward(shape, behind));
    }
  }
  return lists;
}

}  // namespace gemini::policies
