// SPDX-License-Identifier: Apache-2.0
// Plays the task lists of a pipeline's ranks in time, before anybody runs them: whether they end at
// all, how long each rank has nothing to do, and how many activations it holds.
// Model: a rank works on its tasks one after another, each as soon as what it needs has come.
//        Sending takes no rank any time and blocks none.
// Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/pipeline/pipeline_schedule.h"

namespace gemini::policies {

// How long the tasks of one micro-batch in one chunk of a rank take. Where the schedule does not
// split the backward pass, it takes `backward_ns` and `weights_ns` together.
struct PipelineTimes {
  int64_t forward_ns = 1;
  int64_t backward_ns = 1;
  int64_t weights_ns = 1;
  int64_t transfer_ns = 0;  // From one rank to another, each way.
};

struct RankPlayback {
  int64_t begin_ns = 0;  // Of its first task, after the begin of the step.
  int64_t end_ns = 0;
  int64_t busy_ns = 0;
  // The most chunks of micro-batches whose activations it holds, from the begin of their forward
  // pass to the end of the last task that needs them.
  int64_t most_live = 0;

  // What it waits between its first and its last task.
  int64_t idle_ns() const { return end_ns - begin_ns - busy_ns; }
};

// Returns what each rank does. INVALID_ARGUMENT: the lists are not those of a step (the message
// names the first task that is missing, unknown or there twice), or no rank can go on; the message
// then names what each waits for.
absl::StatusOr<std::vector<RankPlayback>> PlayPipeline(PipelineSchedule schedule,
                                                       const PipelineShape& shape,
                                                       const PipelineTaskLists& lists,
                                                       const PipelineTimes& times);

}  // namespace gemini::policies
