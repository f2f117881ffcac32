// SPDX-License-Identifier: Apache-2.0
// A plan's lists from what was decided: who is on DEVICE when, in which slots, and when each fetch
// may begin.
// Evictions: what stays covers ends with one, written back if it was written. What outlives its
//            update on DEVICE is written back behind that and stays. Those behind the last operator
//            are in the order in which the next round needs their room; or, of late gradients, the
//            parameters that are updated when these have arrived, if it needs them earlier.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/plan/plan.h"
#include "policies/trace/next_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

// `trace` is that of the inputs, or one that keeps gradients; `stays` are a round of it (MakeStays)
// and `fetch_after` their FetchTimes. Fetches are in the order of need. made_by and prediction are
// left empty.
Plan AssemblePlan(const PlanInputs& in, const RangeTrace& trace, const NextUses& next_uses,
                  const std::vector<Stay>& stays, const std::vector<int32_t>& fetch_after);

}  // namespace gemini::policies
