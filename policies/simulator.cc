// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "policies/playback.h"

namespace gemini::policies {

absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan,
                                    const CostModel& costs, bool with_events) {
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  const auto same_uses = [&] {
    for (int32_t i = 0; i < trace.num_positions(); ++i) {
      if (plan.first_use[i] != trace.operators[i].first_use) return false;
    }
    return std::equal(plan.uses.begin(), plan.uses.end(), trace.uses.begin(), trace.uses.end(),
                      [](int32_t range, const RangeUse& use) { return range == use.range; });
  };
  if (plan.fingerprint != trace.fingerprint || plan.chunk_bytes != trace.chunk_bytes ||
      plan.num_positions() != trace.num_positions() || plan.ranges != trace.ranges ||
      plan.updated != trace.updated || !same_uses()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of phase ", plan.phase, " (", plan.num_positions(),
                     " positions) is not of the trace of phase ", trace.phase, " (",
                     trace.num_positions(), " positions)"));
  }
  return Playback(trace, plan, costs, FetchChoice::kInOrder, with_events).PlayToSteadyState();
}

}  // namespace gemini::policies
