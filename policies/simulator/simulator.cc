// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/simulator.h"

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "policies/simulator/host_plan.h"
#include "policies/trace/kept_gradients.h"
#include "policies/trace/next_uses.h"

namespace gemini::policies {

namespace {

// What the plan was made from: `trace` with the gradients that the plan keeps. Nothing: it was made
// from another.
std::optional<RangeTrace> PlannedTrace(const RangeTrace& trace, const Plan& plan) {
  const std::vector<int32_t> may_keep = MayKeepGradients(trace);
  const std::set<int32_t> may_be(may_keep.begin(), may_keep.end());
  std::vector<int32_t> updated, late;  // On DEVICE.
  for (const PlannedUpdate& update : plan.device_updates) updated.push_back(update.param());
  for (const int32_t grad : plan.late_gradients) late.push_back(RangeTrace::ParamOf(grad));
  for (const std::vector<int32_t>& params : {updated, late}) {
    for (const int32_t param : params) {
      if (may_be.count(param) == 0) return std::nullopt;
    }
  }
  if (!MayBeLate(trace, late)) return std::nullopt;
  RangeTrace planned = WithKeptGradients(trace, plan);
  const PinnedUses pinned(planned);
  if (plan.fingerprint != trace.fingerprint || plan.chunk_bytes != trace.chunk_bytes ||
      plan.ranges != planned.ranges || plan.updated != planned.updated ||
      plan.device_updates != planned.device_updates ||
      plan.late_gradients != planned.late_gradients || plan.first_use != pinned.first_use ||
      plan.uses != pinned.uses) {
    return std::nullopt;
  }
  const NextUses next_uses(planned);
  for (const PlannedFetch& fetch : plan.fetches) {
    if (fetch.blank && fetch.needed_at % plan.num_positions() != next_uses.first[fetch.range]) {
      return std::nullopt;
    }
  }
  return planned;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan,
                                    const CostModel& costs, bool with_events, int64_t host_bytes) {
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  if (!(plan.device_updates.empty() && plan.late_gradients.empty()) &&
      !(costs.device_update_elements_per_second > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan of phase ", plan.phase, " has ", plan.device_updates.size(), " updates and ",
        plan.late_gradients.size(), " late gradients on DEVICE, which takes none"));
  }
  const std::optional<RangeTrace> planned = PlannedTrace(trace, plan);
  if (!planned) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of phase ", plan.phase, " (", plan.num_positions(),
                     " positions) is not of the trace of phase ", trace.phase, " (",
                     trace.num_positions(), " positions)"));
  }
  Simulation played = PlayInHost(*planned, plan, costs, host_bytes, with_events).played;
  played.totals.device_floor_bytes = LargestOperatorBytes(trace);
  return played;
}

}  // namespace gemini::policies
