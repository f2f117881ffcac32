// SPDX-License-Identifier: Apache-2.0
// Predicts a training step of many ranks: how much memory the neediest rank takes, how long the
// step lasts, and how much of it is spent waiting for what.
// Model:  the slowest rank of a pipeline stands for all of them in the schedule's playback
//         (policies/pipeline/pipeline_playback.h), with what its units compute and exchange
//         (unit_cost.h). ZeRO gathers a unit where it is used, or while the one before computes,
//         and adds up its gradients when its backward is over, as the trainer does. What DEVICE
//         has no room for lies in HOST: optimizer states first, updated there, then parameters
//         with their gradients, which come for each pass. Moves hide under all else, at best: a
//         plan of one rank says how well (policies/simulator/).
// Pure.
#pragma once
#include <vector>

#include "absl/status/statusor.h"
#include "policies/scaling/exchange_cost.h"
#include "policies/scaling/model_sizes.h"
#include "policies/scaling/parallel_run.h"
#include "policies/scaling/rank_groups.h"

namespace gemini::policies {

// Bytes of the rank that takes the most.
struct RankMemory {
  double parameters = 0;
  double gradients = 0;
  double states = 0;
  double gathered = 0;     // Units that ZeRO has whole for a time, with their gradients.
  double activations = 0;  // Kept for backward, of as many micro-batches as are live.
  double host = 0;         // What of the first three lies in HOST.
  double lacking = 0;      // What finds room in neither.
  double total() const { return parameters + gradients + states + gathered + activations; }
};

// Seconds of a step in the slowest rank. They add up to the step.
struct StepSeconds {
  double computing = 0;  // With what is computed again.
  double layers = 0;     // Waiting for ranks that share layers.
  double sequences = 0;  // For those that share sequences.
  double gathers = 0;    // For parameters of ZeRO's ranks.
  double sums = 0;       // For the sums of gradients.
  double transfers = 0;  // For hidden states on their way between stages.
  double idle = 0;       // Of the schedule.
  double update = 0;     // On DEVICE.
  double host = 0;       // For moves to and from HOST and updates there, beyond all else.
  double total() const {
    return computing + layers + sequences + gathers + sums + transfers + idle + update + host;
  }
};

struct StepForecast {
  RankMemory memory;
  StepSeconds seconds;
  ExchangeCost sent;  // By the slowest rank in a step. Its seconds are 0.
  double tokens_per_second = 0;
  // The arithmetic of the model, without what is computed again, over what all ranks could do in
  // the step. Model FLOPS utilisation (Chowdhery et al., arXiv:2204.02311, appendix B) is that, but
  // counts attention to a whole sequence, where here it counts as far as tokens see.
  double efficiency = 0;
};

// INVALID_ARGUMENT: there are more stages than blocks, or PipelineLists refuses the sizes. Whether
// layers divide is not looked at (mesh_fit.h).
absl::StatusOr<StepForecast> ForetellStep(const ModelSizes& model, const ParallelRun& run,
                                          const RankMachine& machine);
// Returns the same as if hidden states took no time on their way between stages, which is a bound:
// the idle time and the live micro-batches of 1f1b and interleaved have formulas then, and nothing
// is played. UNIMPLEMENTED: another schedule.
// `groups` are those of the run's mesh and grid on the machine's nodes.
absl::StatusOr<StepForecast> BoundStep(const ModelSizes& model, const ParallelRun& run,
                                       const RankMachine& machine, const RankGroups& groups);

}  // namespace gemini::policies
