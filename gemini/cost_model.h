// SPDX-License-Identifier: Apache-2.0
// How fast this machine moves bytes and updates parameters: what turns a plan into a predicted
// time. Calibrated by the server at its start, kept per machine, refreshed from what steps measure;
// all but the latency of copies, which is a constant.
#pragma once
#include <cstdint>

namespace gemini {

// What rates may be; all that was ever measured is far within.
inline constexpr double kLeastRate = 1e3;
inline constexpr double kMostRate = 1e14;

struct CostModel {
  // Each > 0, bytes a second; both directions run at once.
  double host_to_device = 8e9;
  double device_to_host = 8e9;
  double nvme_read = 1e9;
  double nvme_write = 1e9;
  // Parameters through one optimizer step.
  double update_elements_per_second = 250e6;         // In HOST, beside the operators.
  double device_update_elements_per_second = 250e6;  // On DEVICE, which computes nothing else then.
  // Of one copy, beside its bytes: three threads hand it on, 40 us on the two cores where it was
  // measured. Not refreshed, for no short measurement tells it: an engine alone hands a small copy
  // on in 10 to 60 us, or in 4 ms where others compute. Planned copies of 1 MiB took 35 us beside
  // their bytes, smaller ones up to 80, and nothing where the link holds each one up for longer
  // than it takes to hand on the next.
  int64_t copy_latency_ns = 40'000;
  bool operator==(const CostModel&) const = default;
};

// What one process measured of these; 0 where it did not.
struct MeasuredRates {
  double host_to_device = 0;
  double device_to_host = 0;
  double nvme_read = 0;
  double nvme_write = 0;
  double update_elements = 0;  // In HOST.
  double device_update_elements = 0;
};

// Return how many nanoseconds `amount` bytes, or elements, take at a rate of so many a second,
// which is > 0.
double ExactTransferNs(int64_t amount, double per_second);
int64_t TransferNs(int64_t amount, double per_second);  // Rounded.

// The costs with a link that is held back to so many bytes a second in each direction. The next
// copy of `chunk_bytes` is handed on while the link is busy with one: what that takes longer is
// left as latency.
CostModel HeldBack(const CostModel& costs, double bytes_per_second, int64_t chunk_bytes);

}  // namespace gemini
