// SPDX-License-Identifier: Apache-2.0
// A plan tied to what it is about: checked, and with the ranges that its indices mean. The server makes
// plans, and nothing that it says may end this process.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/chunk_store.h"
#include "client/residency.h"
#include "gemini/plan.h"
#include "gemini/trace.h"

namespace gemini::client {

struct BoundPlan {
  Plan plan;
  std::vector<RangeId> ranges;  // By plan.ranges.
};

// Finds the ranges of `plan`, whose spaces are `stores`. INVALID_ARGUMENT: CheckPlan, a plan of another
// trace, chunk size or larger budget, or slots beyond the arena. NOT_FOUND: a range that nobody added.
absl::StatusOr<std::shared_ptr<const BoundPlan>> BindPlan(Plan plan, const Trace& trace,
                                                          absl::Span<ChunkStore* const> stores,
                                                          const Residency& residency,
                                                          int64_t device_bytes);

}  // namespace gemini::client
