// SPDX-License-Identifier: Apache-2.0
#include "gemini/cost_model.h"

#include <algorithm>
#include <cmath>

namespace gemini {

double ExactTransferNs(int64_t amount, double per_second) {
  return static_cast<double>(amount) * 1e9 / per_second;
}

int64_t TransferNs(int64_t amount, double per_second) {
  return std::llround(ExactTransferNs(amount, per_second));
}

CostModel HeldBack(const CostModel& costs, double bytes_per_second, int64_t chunk_bytes) {
  const double handed_on_ns =
      static_cast<double>(costs.copy_latency_ns) +
      ExactTransferNs(chunk_bytes, std::min(costs.host_to_device, costs.device_to_host));
  CostModel held_back = costs;
  held_back.host_to_device = held_back.device_to_host = bytes_per_second;
  // Of a link that hardly moves the time may be infinite.
  held_back.copy_latency_ns = static_cast<int64_t>(
      std::max(0.0, handed_on_ns - ExactTransferNs(chunk_bytes, bytes_per_second)));
  return held_back;
}

}  // namespace gemini
