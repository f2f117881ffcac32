// SPDX-License-Identifier: Apache-2.0
#include "tools/planned_timeline.h"

#include "gemini/ids.h"
#include "gemini/system/status_macros.h"
#include "policies/simulator/simulator.h"

namespace gemini::tools {
namespace {

TimelineLane LaneOf(policies::Lane lane) {
  switch (lane) {
    case policies::Lane::kFetch:
      return TimelineLane::kFetch;
    case policies::Lane::kEvict:
      return TimelineLane::kEvict;
    case policies::Lane::kUpdate:
      return TimelineLane::kUpdate;
    case policies::Lane::kNvmeRead:
      return TimelineLane::kNvmeRead;
    case policies::Lane::kNvmeWrite:
      return TimelineLane::kNvmeWrite;
    case policies::Lane::kCompute:
      break;
  }
  return TimelineLane::kOperator;
}

}  // namespace

absl::StatusOr<std::vector<TimelineEvent>> PlannedTimeline(const policies::RangeTrace& trace,
                                                           const Plan& plan, const CostModel& costs,
                                                           int64_t host_bytes) {
  GEMINI_ASSIGN_OR_RETURN(const policies::Simulation played,
                          policies::Simulate(trace, plan, costs, /*with_events=*/true, host_bytes));
  std::vector<TimelineEvent> events;
  for (const policies::SimulatedEvent& event : played.events) {
    TimelineEvent& shown = events.emplace_back(TimelineEvent{.lane = LaneOf(event.lane),
                                                             .cause = event.cause,
                                                             .begin_ns = event.begin_ns,
                                                             .end_ns = event.end_ns,
                                                             .stall_ns = event.stall_ns,
                                                             .size_bytes = event.size_bytes});
    if (shown.lane == TimelineLane::kOperator) {
      shown.subject = static_cast<uint32_t>(event.subject);
      shown.size_bytes = played.device_bytes_at_position[event.subject];
      continue;
    }
    if (shown.lane == TimelineLane::kNvmeRead || shown.lane == TimelineLane::kNvmeWrite) {
      shown.space = static_cast<uint16_t>(event.space);
      shown.subject = static_cast<uint32_t>(event.subject);
      continue;
    }
    const PlannedRange& range = plan.ranges[event.subject];
    shown.space = static_cast<uint16_t>(range.space);
    shown.subject = static_cast<uint32_t>(shown.lane == TimelineLane::kUpdate
                                              ? range.first.value()
                                              : ChunkOf(range.first, range.kind).value());
  }
  return events;
}

}  // namespace gemini::tools
