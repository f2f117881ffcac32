// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator.h"

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "policies/device_updates.h"
#include "policies/next_uses.h"
#include "policies/playback.h"

namespace gemini::policies {

namespace {

// What the plan was made from: `trace` with the plan's updates on DEVICE. Nothing: it was made from another.
std::optional<RangeTrace> PlannedTrace(const RangeTrace& trace, const Plan& plan) {
  const std::vector<int32_t> updatable = UpdatableOnDevice(trace);
  const std::set<int32_t> may_be(updatable.begin(), updatable.end());
  std::vector<int32_t> params;
  for (const PlannedUpdate& update : plan.device_updates) {
    if (may_be.count(update.param) == 0) return std::nullopt;
    params.push_back(update.param);
  }
  RangeTrace planned = WithDeviceUpdates(trace, params);
  const PinnedUses pinned(planned);
  if (plan.fingerprint != trace.fingerprint || plan.chunk_bytes != trace.chunk_bytes ||
      plan.ranges != planned.ranges || plan.updated != planned.updated ||
      plan.device_updates != planned.device_updates || plan.first_use != pinned.first_use ||
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
                                    const CostModel& costs, bool with_events) {
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  if (!plan.device_updates.empty() && !(costs.device_update_elements_per_second > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the plan of phase ", plan.phase, " has ",
                                                   plan.device_updates.size(),
                                                   " updates on DEVICE, which takes none"));
  }
  const std::optional<RangeTrace> planned = PlannedTrace(trace, plan);
  if (!planned) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of phase ", plan.phase, " (", plan.num_positions(),
                     " positions) is not of the trace of phase ", trace.phase, " (",
                     trace.num_positions(), " positions)"));
  }
  Playback playback(*planned, plan, costs, FetchChoice::kInOrder, with_events);
  Simulation played = playback.PlayToSteadyState();
  played.totals.device_floor_bytes = LargestOperatorBytes(trace);
  return played;
}

}  // namespace gemini::policies
