// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/playback_record.h"

#include <algorithm>
#include <utility>

namespace gemini::policies {

void PlaybackRecord::SetDeviceBytes(int32_t position, int64_t size_bytes) {
  device_bytes_[position] = size_bytes;
  totals.device_peak_bytes = std::max(totals.device_peak_bytes, size_bytes);
}

Simulation PlaybackRecord::Take(const SimulatedTime& time) {
  Simulation result;
  result.totals = totals;
  result.totals.round_ns = time.round_ns;
  if (!with_events_) return result;
  for (SimulatedEvent event : events_) {
    if (event.begin_ns < time.round_begin_ns || event.begin_ns >= time.now_ns) continue;
    event.begin_ns -= time.round_begin_ns;
    event.end_ns -= time.round_begin_ns;
    result.events.push_back(event);
  }
  std::stable_sort(
      result.events.begin(), result.events.end(),
      [](const SimulatedEvent& a, const SimulatedEvent& b) { return a.begin_ns < b.begin_ns; });
  result.device_bytes_at_position = std::move(device_bytes_);
  return result;
}

}  // namespace gemini::policies
