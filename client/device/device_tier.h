// SPDX-License-Identifier: Apache-2.0
// Holds the state of one session's ranges on DEVICE, the lock that guards it, and the moves between
// HOST and DEVICE. Residency, on-line placement and plans work on it.
// Thread: any. The functions that need the lock and move bytes release it meanwhile: the range is
// moving then, and whoever wants it waits for `changed`. `mutex` is never held over I/O, a copy
// that is waited for, a request or a callback.
// Deadlock: a thread that moves a range waits for HOST slots, NVMe I/O, copies and commits, none of
// which needs a thread that waits here. The updater waits here only to write back a gradient
// (Clean), and never while that is incoming. A thread writes back one range at a time. If the
// updater awaits it, its HOST slot is reserved, so the write-back ends
// (ChunkStore::AcquireForWriteBack).
// Owner: Residency. Members are public so that clang checks their use against `mutex`.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/device/copy_landings.h"
#include "client/device/device_budget.h"
#include "client/device/followed_plan.h"
#include "client/device/range_table.h"
#include "client/device/stall_times.h"
#include "gemini/ids.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class DeviceTier {
 public:
  // Takes the arguments of Residency's constructor.
  DeviceTier(DeviceBudget& session_budget, CopyEngine& engine, std::byte* arena, int64_t num_slots,
             int64_t slot_bytes);
  DeviceTier(const DeviceTier&) = delete;

  // Waits until a range has arrived or left, or the plan has changed.
  void WaitForChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NotifyChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Waits until nothing moves, or this range does not.
  void AwaitMoves() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AwaitMoveOf(const DeviceRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Wakes the plan's lanes and the threads that wait for a range, because the plan has ended or a
  // lane has gone on.
  void NotifyPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Ends the plan, if one is active, because it does not hold any more.
  void EndPlan(Divergence cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns whether the active plan will bring the range, or room for it, although a thread waits
  // for it. If not, ends the plan.
  bool PlanBrings(RangeId range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Makes a kSettling range kResident if the copies to it are done.
  void Settle(DeviceRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Write a range back if it is dirty, and tell its store of an arrived gradient that an update
  // awaits. They release the lock. With Clean the range may be pinned, before and meanwhile. With
  // Flush it may not, so that the bytes are of one moment. Evict is Flush, and then Drop. On an
  // error the range stays on DEVICE, dirty. FAILED_PRECONDITION: Flush or Evict of a pinned range.
  absl::Status Clean(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status Flush(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status Evict(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Removes a range that is not moving from DEVICE, without writing it back, and releases its
  // charge.
  void Drop(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Makes a range, whose slots are free and charged, kIncoming. EndFetch must follow.
  void BeginFetch(RangeId id, SlotId slot, bool is_online) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Enqueues the copies of all chunks of an incoming range, and returns the last one's event. On an
  // error no copy is in flight. A moment of the optimizer that is FREE is filled with zeros.
  // Releases the lock, and blocks for I/O and while many copies are in flight.
  absl::StatusOr<CopyEvent> CopyIn(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Ends a fetch: the range settles behind `last`. If not `enters`, or if it was dropped meanwhile,
  // it is absent.
  void EndFetch(RangeId id, const CopyEvent& last, bool enters)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  DeviceBudget& budget;
  CopyEngine& copies;
  const int64_t chunk_bytes;
  StallTimes stalls;
  mutable Mutex mutex;
  std::condition_variable changed;  // For threads that wait for a range.
  std::condition_variable lanes;    // For the plan's lanes, and threads that wait for them.
  RangeTable table ABSL_GUARDED_BY(mutex);
  int64_t moving ABSL_GUARDED_BY(mutex) = 0;  // Moves in flight.
  PlanProgress progress;
  FollowedPlan plan ABSL_GUARDED_BY(mutex){progress};
  int64_t fetch_bytes ABSL_GUARDED_BY(mutex) = 0;  // As ResidencyStats.
  int64_t evict_bytes ABSL_GUARDED_BY(mutex) = 0;
  CopyLandings landings;

 private:
  // Writes a range back if it is dirty. `meanwhile` is its state until then.
  absl::Status WriteBack(RangeId id, RangeState meanwhile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TellGradientIsBelow(const DeviceRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  int64_t waiters_ ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace gemini::client
