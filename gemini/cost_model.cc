// SPDX-License-Identifier: Apache-2.0
#include "gemini/cost_model.h"

#include <algorithm>

namespace gemini {

CostModel HeldBack(const CostModel& costs, double bytes_per_second, int64_t chunk_bytes) {
  const auto ns_at = [chunk_bytes](double rate) {
    return static_cast<double>(chunk_bytes) * 1e9 / rate;
  };
  const double handed_on_ns = static_cast<double>(costs.copy_latency_ns) +
                              ns_at(std::min(costs.host_to_device, costs.device_to_host));
  CostModel held_back = costs;
  held_back.host_to_device = held_back.device_to_host = bytes_per_second;
  // If the link hardly moves, the time may be infinite.
  held_back.copy_latency_ns =
      static_cast<int64_t>(std::max(0.0, handed_on_ns - ns_at(bytes_per_second)));
  return held_back;
}

}  // namespace gemini
