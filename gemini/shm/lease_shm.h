// SPDX-License-Identifier: Apache-2.0
// Defines the segment of a lease, which says how many bytes of DEVICE the lease may use from now
// on. The server alone writes it (F_SEAL_FUTURE_WRITE). The client maps it read-only and reads the
// epoch between operators, so it learns of changes without a request.
// Ordering: an epoch's target is complete before `epoch` is stored with release order. A target is
// rewritten only two epochs later, so a reader that finds the epoch unchanged after it read the
// target has read that epoch's.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gemini {

struct LeaseSegmentShm {
  std::atomic<uint64_t> generation;       // The lease's; a client that holds another is fenced.
  std::atomic<uint64_t> epoch;            // 0 at first; raised with every change of the target.
  std::atomic<uint64_t> device_bytes[2];  // The target of epoch e is at e % 2.
  std::atomic<uint64_t> reserved[4];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(LeaseSegmentShm) == 64);
static_assert(offsetof(LeaseSegmentShm, epoch) == 8);
static_assert(offsetof(LeaseSegmentShm, device_bytes) == 16);

struct BudgetTarget {
  uint64_t epoch = 0;
  int64_t device_bytes = 0;
  bool operator==(const BudgetTarget&) const = default;
};

// Posts the target of the next epoch and returns that epoch. Called by the server alone.
inline uint64_t PostBudgetTarget(LeaseSegmentShm& segment, int64_t device_bytes) {
  const uint64_t epoch = segment.epoch.load(std::memory_order_relaxed) + 1;
  segment.device_bytes[epoch % 2].store(static_cast<uint64_t>(device_bytes),
                                        std::memory_order_release);
  segment.epoch.store(epoch, std::memory_order_release);
  return epoch;
}

// Returns the latest target, for the client. It retries while the server posts, which is rare.
inline BudgetTarget ReadBudgetTarget(const LeaseSegmentShm& segment) {
  while (true) {
    const uint64_t epoch = segment.epoch.load(std::memory_order_acquire);
    const uint64_t bytes = segment.device_bytes[epoch % 2].load(std::memory_order_acquire);
    if (segment.epoch.load(std::memory_order_relaxed) == epoch) {
      return {epoch, static_cast<int64_t>(bytes)};
    }
  }
}

}  // namespace gemini
