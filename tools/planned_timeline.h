// SPDX-License-Identifier: Apache-2.0
// Converts what a plan is predicted to do in a round into timeline events, to be shown beside a
// client's.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "gemini/shm/timeline_shm.h"
#include "policies/trace/range_trace.h"

namespace gemini::tools {

// Plays `plan` by `costs`, from the round's beginning at 0. A range of several chunks is one event,
// of its first chunk. An operator's size is the largest sum on DEVICE in its interval. `host_bytes`
// and errors: as in policies::Simulate.
absl::StatusOr<std::vector<TimelineEvent>> PlannedTimeline(const policies::RangeTrace& trace,
                                                           const Plan& plan, const CostModel& costs,
                                                           int64_t host_bytes);

}  // namespace gemini::tools
