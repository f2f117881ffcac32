// SPDX-License-Identifier: Apache-2.0
// Assembles a plan's lists from the decisions: which ranges are on DEVICE when, in which slots, and
// when each fetch may begin.
// Evictions: each stay ends with an eviction, with a write-back if the range was written. A range
// that outlives its update on DEVICE is written back after that and stays. Evictions behind the
// last operator are in the order in which the next round needs their room. A late gradient's place
// may instead be set by the parameters that are updated when it has arrived, if the round needs
// them earlier.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/plan/plan.h"
#include "policies/trace/next_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

// Assembles the plan. `trace` is that of the inputs, or one that keeps gradients. `stays` are a
// round of it (MakeStays) and `fetch_after` their FetchTimes. Fetches are in the order of need.
// made_by and prediction are left empty.
Plan AssemblePlan(const PlanInputs& in, const RangeTrace& trace, const NextUses& next_uses,
                  const std::vector<Stay>& stays, const std::vector<int32_t>& fetch_after);

}  // namespace gemini::policies
