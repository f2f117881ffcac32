// SPDX-License-Identifier: Apache-2.0
// Plans what a rank asks of each tier for its shards of a model. Runs and forecasts of them ask
// here, so they have the same.
// Units:  bytes.
// Thread: as traced_step.h.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/run_config.h"
#include "trainer/forecast/memory_plan.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

struct ShardPlan {
  MemoryPlan memory;
  // Why it is not known what operators need of DEVICE, or OK.
  absl::Status floor;
};

// Returns what `rank` asks of each tier for its shards of a model, which may be without values, in
// chunks of the size that wastes little. `config` has DEVICE as a number. `available_bytes`: this
// rank's part of the memory that is free. `context_bytes`: what of DEVICE a GPU's context takes.
// Errors: as PlanMemory, and RESOURCE_EXHAUSTED where no step runs in DEVICE; it names the operator
// and what it needs.
absl::StatusOr<ShardPlan> PlanShards(const RunConfig& config, const GatheredModel& model,
                                     const RankLayout& layout, int64_t rank,
                                     int64_t available_bytes, int64_t context_bytes = 0);

}  // namespace gemini::trainer
