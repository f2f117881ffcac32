// SPDX-License-Identifier: Apache-2.0
#include "client/session/observed_rates.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace gemini::client {

ObservedRates ObserveRates(const TimelineShm& timeline, int64_t link_since_ns) {
  struct Sum {
    int64_t size_bytes = 0;
    int64_t busy_ns = 0;
  };
  std::array<Sum, kNumTimelineLanes> sums;
  const uint64_t written = timeline.written.load(std::memory_order_acquire);
  const uint64_t first = written - std::min<uint64_t>(written, kTimelineEntries) + 1;
  for (uint64_t number = first; number <= written; ++number) {
    const std::optional<TimelineEvent> event = ReadTimelineEvent(timeline, number);
    if (!event) continue;
    const bool is_link = event->lane == TimelineLane::kFetch || event->lane == TimelineLane::kEvict;
    if (is_link && event->begin_ns < link_since_ns) continue;
    Sum& sum = sums[static_cast<size_t>(event->lane)];
    sum.size_bytes += event->size_bytes;
    sum.busy_ns += event->end_ns - event->begin_ns;
  }
  const auto rate = [&sums](TimelineLane lane) {
    const Sum& sum = sums[static_cast<size_t>(lane)];
    if (sum.size_bytes < kLeastObservedBytes || sum.busy_ns == 0) return 0.0;
    return static_cast<double>(sum.size_bytes) * 1e9 / static_cast<double>(sum.busy_ns);
  };
  return {.host_to_device = rate(TimelineLane::kFetch),
          .device_to_host = rate(TimelineLane::kEvict),
          .nvme_read = rate(TimelineLane::kNvmeRead),
          .nvme_write = rate(TimelineLane::kNvmeWrite),
          .update_elements = rate(TimelineLane::kUpdate) / kTimelineElementBytes,
          .device_update_elements = rate(TimelineLane::kDeviceUpdate) / kTimelineElementBytes};
}

}  // namespace gemini::client
