// SPDX-License-Identifier: Apache-2.0
// A plan bound to the ranges that its indices mean, and checked. The server makes plans, and none
// of them may end this process.
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
  std::vector<RangeId> ranges;  // By plan.ranges.
  KeptForUpdate kept;           // By plan.device_updates and plan.late_gradients.
  // How many fetches and evictions of its range come before a move in its round. Being in `initial`
  // counts as a fetch.
  std::vector<PlanTurn> fetch_turns;     // By plan.fetches.
  std::vector<PlanTurn> eviction_turns;  // By plan.evictions.
  std::vector<PlanTurn> moves_of;        // By plan.ranges: how many of each a round has.
};

// Finds the ranges of `plan`, whose spaces are `stores`. INVALID_ARGUMENT: as CheckPlan, or a plan
// of another trace, chunk size or larger budget, or slots beyond the arena. NOT_FOUND: a range that
// was not added.
absl::StatusOr<std::shared_ptr<const BoundPlan>> BindPlan(Plan plan, const Trace& trace,
                                                          absl::Span<ChunkStore* const> stores,
                                                          const Residency& residency,
                                                          int64_t device_bytes);

}  // namespace gemini::client
