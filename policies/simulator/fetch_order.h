// SPDX-License-Identifier: Apache-2.0
// Orders a plan's fetches: among those that may begin, the one needed first goes first. A fetch
// whose slots are still being written back, or whose update is not committed, lets those behind it
// pass. The list is fixed, so the order is found by playing the plan against the cost model.
#pragma once
#include "absl/status/status.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Reorders the fetches. Those for the next round that do not get their turn in this one are listed
// in the next. `plan` is a valid plan of `trace` and stays one. Returns the error of `interrupt`,
// which may be empty and is asked before each round that is played; `plan` is unchanged then.
absl::Status OrderFetches(const RangeTrace& trace, const CostModel& costs,
                          const PlanInterrupt& interrupt, Plan& plan);

}  // namespace gemini::policies
