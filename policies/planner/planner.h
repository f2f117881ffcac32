// SPDX-License-Identifier: Apache-2.0
// Compiles a trace into a plan. It is pure: the same arguments give the same plan, so the server,
// the simulator and `memstat plan` share one code.
// Source: farthest-next-use replacement of Belady, "A study of replacement algorithms for a
// virtual-storage computer" (IBM Systems Journal 5, 1966), over the circular sequence of uses. When
// to begin a fetch is as in the conservative strategy of Cao, Felten, Karlin and Li, "A study of
// integrated prefetching and caching strategies" (SIGMETRICS 1995).
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "gemini/plan/plan.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Makes a plan. It leaves the trace's room on DEVICE (Trace::room_bytes) or, if no such plan fits,
// none beside the peaks. The policy auto moves updates to DEVICE, and keeps gradients there until
// the update (policies/trace/kept_gradients.h), where that makes the predicted round faster.
// Presets move only the updates that they define. If costs.device_update_elements_per_second is 0,
// none is moved. If HOST lacks room for all chunks, the plan lists the uses there, and its
// prediction includes NVME.
// RESOURCE_EXHAUSTED: an operator's chunks and non-model data do not fit at once. The message names
// the position, the numbers and the least budget that would do. Or the trace takes more steps than
// CheckPlanSteps accepts (policies/planner/plan_effort.h).
// INVALID_ARGUMENT: the costs are beyond those of any machine.
// UNIMPLEMENTED: PolicyKind::kOnline has no plan.
// An error of inputs.interrupt is returned. If it is DEADLINE_EXCEEDED and there is a plan already,
// the best plan so far is returned instead.
absl::StatusOr<Plan> MakePlan(const PlanInputs& inputs);

// Returns the least DEVICE budget with which any plan exists: the largest sum of the chunks that
// one operator pins and its non-model data. Admission uses it.
int64_t DeviceFloorBytes(const RangeTrace& trace);

}  // namespace gemini::policies
