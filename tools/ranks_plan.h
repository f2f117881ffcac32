// SPDX-License-Identifier: Apache-2.0
// Runs `memstat plan --ranks N`, which predicts what a step of many ranks takes, each a GPU with
// its part of its node's HOST, or which mesh of them is the fastest. From config.json, the table of
// GPUs and the keys of gemini-train, by formulas. Of few ranks on processors that were measured,
// gemini-trace runs the step of each without memory (trainer/forecast/rank_step.h).
#pragma once
#include "absl/status/statusor.h"
#include "policies/scaling/parallel_run.h"
#include "tools/memstat_plan.h"
#include "trainer/config/run_config.h"

namespace gemini::tools {

// Prints it. `run` has the keys behind "--", or nothing but defaults. Returns the exit status, as
// RunPlan does.
int RunRanksPlan(PlanFlags flags, const trainer::RunConfig& run);

// What a rank is, by the GPU's table and the flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<policies::RankMachine> RankMachineOf(const PlanFlags& flags, ElementType precision);
// What the ranks do, by flags and keys. A search takes what it does not try itself.
// INVALID_ARGUMENT: the ranks do not divide in this way, or this is not foretold; the message names
// the keys. UNIMPLEMENTED: gemini-train has no ranks with such keys.
absl::StatusOr<policies::ParallelRun> ParallelRunOf(const PlanFlags& flags, trainer::RunConfig run,
                                                    ElementType precision, int64_t sequence,
                                                    int64_t num_blocks);

}  // namespace gemini::tools
