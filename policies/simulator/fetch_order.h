// SPDX-License-Identifier: Apache-2.0
// The order of a plan's fetches: of those that may begin, the one needed first goes first. One
// whose slots are still being written back, or whose update is not committed, lets those behind it
// pass meanwhile. The list is fixed, so the order comes from playing the plan against the cost
// model.
#pragma once
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Reorders the fetches, and lists those for the next round that do not get their turn in this one
// in the next. `plan` is a valid plan of `trace` and stays one.
void OrderFetches(const RangeTrace& trace, const CostModel& costs, Plan& plan);

}  // namespace gemini::policies
