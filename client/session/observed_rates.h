// SPDX-License-Identifier: Apache-2.0
// How fast this job's copies, NVME I/O and updates were lately, from its timeline: what refreshes
// the server's cost model.
// Model: bytes by the time that the events of a lane took. Reads of several threads at once count
//        one after another, and an update's wait for NVME is part of it.
//        An update on DEVICE is that alone: the squares of its gradients, which come before, are
//        not in it.
// Units: bytes a second; updates: fp32 parameters a second, a chunk's padding among them.
#pragma once
#include <cstdint>

#include "gemini/shm/timeline_shm.h"

namespace gemini::client {

// 0: nothing was measured.
struct ObservedRates {
  double host_to_device = 0;
  double device_to_host = 0;
  double nvme_read = 0;
  double nvme_write = 0;
  double update_elements = 0;         // In HOST.
  double device_update_elements = 0;  // On DEVICE.
};

// A lane with less than this says nothing: single copies measure their latency.
inline constexpr int64_t kLeastObservedBytes = int64_t{32} << 20;

// Of copies over the link only those that began at `link_since_ns` or later.
ObservedRates ObserveRates(const TimelineShm& timeline, int64_t link_since_ns = 0);

}  // namespace gemini::client
