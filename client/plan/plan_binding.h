// SPDX-License-Identifier: Apache-2.0
// Checks a plan and binds it to this session's ranges, which the plan names by index. Plans come
// from the server, so a wrong one must be refused and must not end this process.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/device/followed_plan.h"
#include "client/device/kept_for_update.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"

namespace gemini::client {

struct BoundPlan {
  Plan plan;
  std::vector<RangeId> ranges;  // In the order of plan.ranges.
  KeptForUpdate kept;           // By plan.device_updates and plan.late_gradients.
  // How many fetches and evictions of the same range precede each move in its round. Being in
  // `initial` counts as a fetch.
  std::vector<PlanTurn> fetch_turns;     // By plan.fetches.
  std::vector<PlanTurn> eviction_turns;  // By plan.evictions.
  std::vector<PlanTurn> moves_of;        // By plan.ranges: how many of each a round has.
  std::vector<bool> behind_write_backs;  // By plan.evictions: BehindWriteBacks.
};

// Finds the ranges of `plan`, whose spaces are `stores`. INVALID_ARGUMENT: as CheckPlan, or the
// plan is for another trace, another chunk size or a larger budget, or uses slots beyond the arena.
// NOT_FOUND: a range was not added to `residency`.
absl::StatusOr<std::shared_ptr<const BoundPlan>> BindPlan(Plan plan, const Trace& trace,
                                                          absl::Span<ChunkStore* const> stores,
                                                          const Residency& residency,
                                                          int64_t device_bytes);

}  // namespace gemini::client
