// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/update_lane.h"

#include <algorithm>

#include "policies/trace/host_update.h"

namespace gemini::policies {

UpdateLane::UpdateLane(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                       HostClock& host, PlaybackRecord& record)
    : trace_(trace),
      plan_(plan),
      costs_(costs),
      host_(host),
      record_(record),
      commits_(trace.ranges.size()),
      is_late_(trace.ranges.size()) {
  for (const int32_t range : trace.late_gradients) is_late_[RangeTrace::ParamOf(range)] = true;
}

void UpdateLane::Play(int64_t begin_ns, absl::Span<const int64_t> arrived_ns) {
  free_.ns = std::max(free_.ns, begin_ns);
  std::vector<int32_t> late, others;  // By arrival, and in the plan's order.
  for (const int32_t range : plan_.updated) (is_late_[range] ? late : others).push_back(range);
  const auto arrival_ns = [&](int32_t param) { return arrived_ns[RangeTrace::GradOf(param)]; };
  std::stable_sort(late.begin(), late.end(),
                   [&](int32_t a, int32_t b) { return arrival_ns(a) < arrival_ns(b); });
  auto next_late = late.begin(), next_other = others.begin();
  while (next_late != late.end() || next_other != others.end()) {
    const bool takes_late = next_late != late.end() &&
                            (next_other == others.end() || arrival_ns(*next_late) <= free_.ns);
    const int32_t range = takes_late ? *next_late++ : *next_other++;
    const bool waits = takes_late && arrival_ns(range) > free_.ns;
    if (waits) free_.ns = arrival_ns(range);
    UpdateRange(range, waits ? StallCause::kTransfer : StallCause::kUpdate);
  }
}

void UpdateLane::UpdateRange(int32_t range, StallCause cause) {
  const PlannedRange& updated = trace_.ranges[range];
  const int64_t update_ns = HostUpdateNs(trace_, updated, costs_);
  const int64_t bundle_ns = update_ns / updated.num_bundles;
  if (cause == StallCause::kUpdate && WaitsForNvme(trace_, updated, costs_)) {
    cause = StallCause::kNvme;
  }
  const HostReady host = host_.Ask(HostEvent::kUpdate, range, free_.ns, bundle_ns);
  const int64_t begin_ns = std::max(free_.ns, host.first_ns);
  const int64_t end_ns = std::max(begin_ns + update_ns, host.last_ns + bundle_ns);
  if (end_ns > free_.ns + update_ns) cause = StallCause::kNvme;
  free_ = {end_ns, cause == StallCause::kNvme ? cause : StallCause::kUpdate};
  commits_[range] = {.first_ns = begin_ns + bundle_ns, .last_ns = end_ns, .cause = cause};
  record_.Add({.lane = Lane::kUpdate, .subject = range, .begin_ns = begin_ns, .end_ns = end_ns});
  MoveStates(updated, begin_ns);
}

void UpdateLane::MoveStates(const PlannedRange& updated, int64_t begin_ns) {
  const int64_t bytes = StateBytesOnNvme(trace_, updated);
  if (bytes == 0) return;
  record_.totals.nvme_read_bytes += bytes;
  record_.totals.nvme_write_bytes += bytes;
  const auto add = [&](Lane lane, double rate) {
    record_.Add(
        {.lane = lane,
         .subject = static_cast<int32_t>(ChunkOf(updated.first, ChunkKind::kExpAvg).value()),
         .space = updated.space,
         .size_bytes = bytes,
         .begin_ns = begin_ns,
         .end_ns = begin_ns + TransferNs(bytes, rate)});
  };
  add(Lane::kNvmeRead, costs_.nvme_read);
  add(Lane::kNvmeWrite, costs_.nvme_write);
}

}  // namespace gemini::policies
