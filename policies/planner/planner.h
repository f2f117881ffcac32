// SPDX-License-Identifier: Apache-2.0
// Compiles a trace into a plan. Pure: the same arguments give the same plan, so the server, the
// simulator and `memstat plan` share one code.
// Source: farthest-next-use replacement of Belady, "A study of replacement algorithms for a
//         virtual-storage computer" (IBM Systems Journal 5, 1966), over the circular sequence of
//         uses; when to begin a fetch as in the conservative strategy of Cao, Felten, Karlin and
//         Li, "A study of integrated prefetching and caching strategies" (SIGMETRICS 1995).
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "gemini/plan/plan.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Updates go to DEVICE, and gradients stay there until the update
// (policies/trace/kept_gradients.h), by auto where the round is predicted to be faster so; by
// presets updates alone do, as they say. By none when costs.device_update_elements_per_second is 0.
// Where HOST lacks room for all chunks, the plan says what it uses there, and its prediction what
// NVME does. RESOURCE_EXHAUSTED: an operator's chunks and non-model data do not fit at once; names
// the position, the numbers and the least budget that would do; or the trace is more than
// CheckPlanSteps takes (policies/planner/plan_effort.h). INVALID_ARGUMENT: costs beyond all
// machines. UNIMPLEMENTED: PolicyKind::kOnline has no plan. What inputs.interrupt returns, but for
// DEADLINE_EXCEEDED where there is a plan already: then it is the best one so far.
absl::StatusOr<Plan> MakePlan(const PlanInputs& inputs);

// The least DEVICE budget with which any plan exists: chunks that one operator pins and its
// non-model data, the largest sum. Admission uses it.
int64_t DeviceFloorBytes(const RangeTrace& trace);

}  // namespace gemini::policies
