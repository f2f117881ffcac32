// SPDX-License-Identifier: Apache-2.0
// Measures how long operators have waited for their chunks since the beginning, by cause. The time
// is by the clock of what they run on. So a thread that waits while its GPU has work to do delays
// nothing, and a GPU that waits while its thread goes on is counted.
// Thread: any; one lock, the last in the order except for the copy engine's.
// Units: nanoseconds.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/copy/copy_engine.h"
#include "client/copy/measured_spans.h"
#include "client/host/space_counters.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class StallTimes {
 public:
  // `clock` outlives this.
  explicit StallTimes(CopyEngine& clock) : clock_(clock) {}

  // Adds a wait: what the calling thread's operators did since `begin` was to wait for a chunk of
  // `space`. It is counted there, too, once it is measured; the space lives until then. Returns the
  // wait's end.
  OperatorPoint Add(SpaceCounters& space, StallCause cause, OperatorPoint begin);
  OperatorPoint Now() { return clock_.Now(); }

  // Returns how many waits were added.
  uint64_t num_added() const { return num_added_.load(std::memory_order_acquire); }
  // Adds those of the first `num_first` waits that are over to the totals. IntervalMeter calls it
  // when it is asked for times.
  void Settle(uint64_t num_first = std::numeric_limits<uint64_t>::max());
  // Return the times of the waits that were added to the totals so far.
  int64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }
  int64_t of(StallCause cause) const {
    return by_cause_ns_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }

 private:
  struct Stall {
    uint64_t number = 0;  // From 1.
    SpaceCounters* space = nullptr;
    StallCause cause = StallCause::kTransfer;
  };
  // If times are not requested for a while, waits that are over are counted once there are so many.
  static constexpr size_t kMostPending = 4096;

  void SettleLocked(uint64_t num_first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CopyEngine& clock_;
  mutable Mutex mutex_;
  std::atomic<uint64_t> num_added_{0};  // Written under the lock, and so is the next.
  std::atomic<uint64_t> num_settled_{0};
  MeasuredSpans<Stall> pending_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> total_ns_{0};
  std::array<std::atomic<int64_t>, kNumStallCauses> by_cause_ns_ = {};
};

}  // namespace gemini::client
