// SPDX-License-Identifier: Apache-2.0
// Predicts one rank's part of a training step by a dry run: its part of the run is made as the run
// makes it (part_of_run.h), its micro-batches run on the meta device, and what it would exchange
// with others is noted beside the time that its kernels take until then.
// Bytes:  sent as the Communicator counts them, HOST as the run asks for it (shard_plan.h), DEVICE
//         at its peak in a round that follows the plan of this trace.
// Times:  of kernels as traced_step.h. What goes to DEVICE and from it, the norm of the gradients
//         and the update are work of the rank, too, at the rate of memory: before, behind and
//         between what it exchanges.
// Thread: as traced_step.h.
// Units:  bytes, seconds.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "policies/pipeline/step_playback.h"
#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/ranks_forecast.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

struct RankStep {
  policies::RankActions actions;
  SentByKind sent;
  int64_t host_bytes = 0;
  int64_t device_peak_bytes = 0;
};

// Returns the step of `rank`. `config` has DEVICE and the length of sequences as numbers. Errors:
// as StagesOfRun, MakePartOfRun, PlanShards, TraceRun and MakePlan. UNIMPLEMENTED: a schedule whose
// activations leave DEVICE, or a policy that makes no plans.
absl::StatusOr<RankStep> ForetellRankStep(const ModelSpec& spec, const RunConfig& config,
                                          const RankLayout& layout, int64_t rank,
                                          const RankStepRates& rates);

// Returns what a step of all ranks takes, by their steps played against each other. Errors: as
// LayoutOf and ForetellRankStep, whose message names the rank, and as PlayStep. Where DEVICE is too
// small for several ranks, the status is that of the one which needs most.
absl::StatusOr<RanksForecast> ForetellStepOfRanks(const ModelSpec& spec, const RunConfig& config,
                                                  int64_t num_ranks, const RankStepRates& rates);

}  // namespace gemini::trainer
