// SPDX-License-Identifier: Apache-2.0
// Holds how fast this machine moves bytes and updates parameters, which turns a plan into a
// predicted time. The server calibrates the rates at its start, keeps them per machine and
// refreshes them from what steps measure. The latency of copies is a constant.
#pragma once
#include <cstdint>

namespace gemini {

// The range that rates may have. All that was ever measured is far within it.
inline constexpr double kLeastRate = 1e3;
inline constexpr double kMostRate = 1e14;

// What AdamW's update of an element of fp32 reads and writes: value, gradient and two moments,
// written all but the gradient.
inline constexpr double kBytesAnUpdate = 28;

// What a copy to a GPU or from it takes beside its bytes. On an H100 the copy engine took 8 us with
// copies of 4 MiB and 12 with those of 16 MiB, by the rates in docs/cuda.md and 55 GB/s.
inline constexpr int64_t kGpuCopyLatencyNs = 10'000;

struct CostModel {
  // In bytes a second, each > 0. Both directions run at once.
  double host_to_device = 8e9;
  double device_to_host = 8e9;
  double nvme_read = 1e9;
  double nvme_write = 1e9;
  // Parameters that one optimizer step updates.
  double update_elements_per_second = 250e6;         // In HOST, beside the operators.
  double device_update_elements_per_second = 250e6;  // On DEVICE, which computes nothing else then.
  // The time that one copy takes beside its bytes. Three threads hand a copy on, which took 40 us
  // on the two cores where it was measured. It is not refreshed, because no short measurement finds
  // it: an engine alone hands a small copy on in 10 to 60 us, or in 4 ms where others compute.
  // Planned copies of 1 MiB took 35 us beside their bytes and smaller ones up to 80. They took
  // nothing where the link holds each one up for longer than it takes to hand on the next.
  int64_t copy_latency_ns = 40'000;
  bool operator==(const CostModel&) const = default;
};

// The rates that one process measured; a rate is 0 where it measured none.
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

// Returns the costs with a link that is held back to `bytes_per_second` in each direction. The next
// copy of `chunk_bytes` is handed on while the link is busy with the one before, so only the part
// of the latency that exceeds that time remains.
CostModel HeldBack(const CostModel& costs, double bytes_per_second, int64_t chunk_bytes);

}  // namespace gemini
