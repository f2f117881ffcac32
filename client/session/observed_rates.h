// SPDX-License-Identifier: Apache-2.0
// Measures how fast this job's copies, NVME I/O and updates were lately, from its timeline, to
// refresh the server's cost model.
// Model: the bytes of a lane's events, divided by the time that the events took. Reads of several
// threads at once count one after another, and an update's wait for NVME is part of it. An update
// on DEVICE counts alone, without the squares of its gradients, which are summed before.
// Units: bytes a second; for updates, fp32 parameters a second, with a chunk's padding.
#pragma once
#include <cstdint>

#include "gemini/shm/timeline_shm.h"

namespace gemini::client {

// A rate is 0 if nothing was measured.
struct ObservedRates {
  double host_to_device = 0;
  double device_to_host = 0;
  double nvme_read = 0;
  double nvme_write = 0;
  double update_elements = 0;         // In HOST.
  double device_update_elements = 0;  // On DEVICE.
};

// A lane with fewer bytes gives no rate, because single copies measure their latency.
inline constexpr int64_t kLeastObservedBytes = int64_t{32} << 20;

// Returns the rates. Of copies over the link, only those that began at `link_since_ns` or later
// count.
ObservedRates ObserveRates(const TimelineShm& timeline, int64_t link_since_ns = 0);

}  // namespace gemini::client
