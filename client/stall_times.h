// SPDX-License-Identifier: Apache-2.0
// How long operators waited for their chunks, by cause, since the beginning.
// Thread: any.
// Units:  nanoseconds.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "client/space_counters.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

class StallTimes {
 public:
  // Counted in the space that it was for, too.
  void Add(SpaceCounters& space, StallCause cause, int64_t stall_ns) {
    by_cause_ns_[static_cast<size_t>(cause)].fetch_add(stall_ns, std::memory_order_relaxed);
    total_ns_.fetch_add(stall_ns, std::memory_order_relaxed);
    space.AddStallNs(cause, stall_ns);
  }
  int64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }
  int64_t of(StallCause cause) const {
    return by_cause_ns_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> total_ns_{0};
  std::array<std::atomic<int64_t>, kNumStallCauses> by_cause_ns_ = {};
};

}  // namespace gemini::client
