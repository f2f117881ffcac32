// SPDX-License-Identifier: Apache-2.0
// Lists in which order the ranks of a pipeline work on the micro-batches of a step. A schedule is a
// fixed list of tasks for each rank: the trainer and the forecast read the same lists.
// Terms:  a pipeline has p ranks, each with v chunks of the model's blocks (v is 1 in most
//         schedules). A virtual stage is one chunk of one rank; there are p * v of them, and the
//         first holds the first blocks. A step has m micro-batches.
// Pure: every rank computes the same lists and asks nobody.
// Source: 1F1B: Narayanan et al., SOSP 2019. Interleaved: Narayanan et al., SC 2021. ZB-H1, ZB-H2
//         and ZB-V: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::policies {

enum class PipelineSchedule : uint8_t { k1f1b, kInterleaved, kZbH1, kZbH2, kZbV };

// Returns "1f1b", "interleaved", "zb-h1", "zb-h2" or "zb-v".
absl::string_view PipelineScheduleName(PipelineSchedule schedule);
// INVALID_ARGUMENT: none has that name; the message has those that there are.
absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name);
// Returns whether a backward pass is two tasks: one for the gradients of a stage's input, and a
// later one for those of its weights. Such schedules are foretold and not run.
bool SplitsBackward(PipelineSchedule schedule);

struct PipelineShape {
  int64_t ranks = 1;          // p.
  int64_t chunks = 1;         // v, of each rank.
  int64_t micro_batches = 1;  // m, of a step.
};

struct PipelineTask {
  enum class Kind : uint8_t {
    kForward,
    kBackward,         // All of it, or the input's gradients where the schedule splits it.
    kBackwardWeights,  // What is left of it then.
  };
  Kind kind = Kind::kForward;
  int chunk = 0;            // Of the rank, from 0 to v - 1.
  int64_t micro_batch = 0;  // From 0 to m - 1.
  bool operator==(const PipelineTask&) const = default;
};
// Returns "backward of chunk 1, micro-batch 3".
std::string ToString(const PipelineTask& task);

// By rank.
using PipelineTaskLists = std::vector<std::vector<PipelineTask>>;

// Checks the sizes. INVALID_ARGUMENT, with the numbers: one is below 1; interleaved, and the
// micro-batches are no multiple of the ranks; zb-v, which has 2 chunks a rank, or another of those
// with one, has a different number of them.
absl::Status CheckPipelineShape(PipelineSchedule schedule, const PipelineShape& shape);
// Returns each rank's tasks of a step in order. INVALID_ARGUMENT: of CheckPipelineShape.
absl::StatusOr<PipelineTaskLists> PipelineLists(PipelineSchedule schedule,
                                                const PipelineShape& shape);

// Returns which virtual stage the chunk of a rank is: chunk c of rank r is stage c * p + r, and in
// zb-v, which runs down the ranks and back, chunk 1 is stage 2 * p - 1 - r.
int64_t VirtualStage(PipelineSchedule schedule, const PipelineShape& shape, int64_t rank,
                     int64_t chunk);

}  // namespace gemini::policies
