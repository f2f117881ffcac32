// SPDX-License-Identifier: Apache-2.0
// Lets operators and the optimizer pin ranges of chunks on DEVICE, write to them, and write them
// back. A range is moved in one of two ways. On-line, it is fetched when an operator asks for it,
// and the least recently used ranges are evicted for it (online_placement.h). By a plan, it is
// moved ahead of the operators (planned_placement.h).
// Thread: any. A pin of a resident range that is no gradient makes no system call and allocates
// nothing, and never waits for another thread's move. Calls that move bytes block for their I/O,
// for write-backs that make room, while many fetches are in flight, and where
// CopyEngine::MakeOperatorsWait blocks. No lock is held meanwhile (client/device/device_tier.h).
// Locks: DeviceTier, SpaceTiers, ResidencyWriter, in this order. Copy workers, landings, the chunk
// store and the server call nothing here, and the updater calls only WriteBack. None of them waits
// for a pin.
// Order: operators of a thread that pins a range run after the copies to the range. Copies and
// operators that write into its slots, and copies that write it back, run after the operators that
// Unpin was given.
// Update: before an update in HOST, Flush a dirty range (or WriteBack later), and Drop it once its
// bundles await their commit, because its copy is then stale. Before an update on DEVICE the range
// is pinned and clean (client/update/device_update.h).
// Errors: RESOURCE_EXHAUSTED if the budget cannot hold what must be pinned at once; nothing is
// pinned then. Errors of ChunkStore pass through. For a copy that fails after its pin see
// CopyEngine::status.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_budget.h"
#include "client/device/device_range.h"
#include "client/device/device_tier.h"
#include "client/device/pending_write.h"
#include "client/device/stall_times.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class Residency {
 public:
  // `arena` has num_slots * chunk_bytes. All arguments outlive this.
  Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
            int64_t chunk_bytes);
  Residency(const Residency&) = delete;

  // Adds the range of `num_bundles` chunks of `kind` from `first` and returns its id, which is the
  // same if the range was added before. `store` outlives this and has the same chunk_bytes.
  RangeId AddRange(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind);

  // Pins each range of `ranges` (repeats count), fetching those that are not on DEVICE, and returns
  // the address of each one's first byte in `addresses`, which is as long. Operators that the
  // calling thread begins next run after copies in flight to them. Pins all or none. Succeeds
  // whenever these ranges and those pinned by others fit into the budget beside non-model data,
  // unless gaps between the others' ranges prevent it. For a gradient it first waits until a
  // pending update has read it.
  absl::Status Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses);
  // Drops one pin. After the last pin the range may be evicted, behind `after`: the operators that
  // used it, or all of the calling thread's if not given. `dirty`: its bytes were written while it
  // was pinned.
  void Unpin(RangeId range, bool dirty, const CopyEvent& after);
  void Unpin(RangeId range, bool dirty) { Unpin(range, dirty, tier_.copies.AfterOperators()); }

  // Copies `size_bytes` from DEVICE memory `source` into the range at offset_bytes, behind the
  // calling thread's operators. The copy goes to where the newest bytes are: the DEVICE copy, which
  // becomes dirty, or HOST. FREE chunks become HOLD, with zeros elsewhere. `alone`: no other byte
  // of the range is of use, so the room that the plan reserves for it on DEVICE suffices. Returns
  // when all is enqueued. Write also waits for copies into HOST, not for one into DEVICE. `source`
  // lives until the result is done, the operators that made it longer. Pins, writes, flushes, drops
  // and fetches of the range run after the copy. Waits for a commit that a bundle awaits.
  // FAILED_PRECONDITION: the range is committed. INVALID_ARGUMENT: past its end. On an error in the
  // middle of a range that spans, the part before it is written.
  absl::StatusOr<PendingWrite> BeginWrite(RangeId range, int64_t offset_bytes, const void* source,
                                          int64_t size_bytes, bool alone = false);
  absl::Status Write(RangeId range, int64_t offset_bytes, const void* source, int64_t size_bytes);
  // Waits for a write to the range. The time counts as a stall for transfer.
  void AwaitWrite(RangeId range, PendingWrite& write);
  // Writes the range back if it is dirty. It stays on DEVICE, clean. FAILED_PRECONDITION: pinned.
  absl::Status Flush(RangeId range);
  // As Flush, but pinned or not. Whoever writes to it meanwhile makes it dirty again. It tells the
  // store of a gradient that an update awaits: the updater calls it for these.
  absl::Status WriteBack(RangeId range);
  // Drops the DEVICE copy, dirty or not, even one whose fetch is in flight. FAILED_PRECONDITION:
  // pinned.
  absl::Status Drop(RangeId range);
  SlotId DeviceSlot(RangeId range) const;  // Its first slot; none while not on DEVICE.
  // Evicts unpinned ranges, least recently used first, until `size_bytes` more fit into the budget:
  // a stall for room. Returns whether they fit; `why` may get the last write-back's error. For the
  // allocator of non-model data. Another thread may take the room first, so charge it, and call
  // again if that fails.
  bool MakeRoom(int64_t size_bytes, absl::Status* why = nullptr);
  // Changes the budget, within the arena. A smaller one ends the plan, evicts until the rest fits,
  // and waits until nothing beyond it is in use. FAILED_PRECONDITION: pins are in the way.
  // RESOURCE_EXHAUSTED: non-model data is in the way. The budget is changed nevertheless: call
  // again between operators.
  absl::Status SetBudget(int64_t device_bytes);
  // Sets a function that is called without a lock where room is missing for non-model data or for
  // a pin. It waits for a copy that holds non-model data, and returns false if there is none.
  void set_pending_release(std::function<bool()> release);
  ResidencyStats stats() const;
  StallTimes& stalls() { return tier_.stalls; }
  CopyEngine& copies() { return tier_.copies; }
  int64_t num_slots() const;  // Those within the budget.
  int64_t chunk_bytes() const { return tier_.chunk_bytes; }
  // Returns the range's id. NOT_FOUND: there is no such range.
  absl::StatusOr<RangeId> FindRange(const ChunkStore& store, BundleId first, int64_t num_bundles,
                                    ChunkKind kind) const;
  DeviceTier& tier() { return tier_; }  // For plans.

 private:
  // Waits while an update reads, or is going to read, the gradients of the range.
  absl::Status AwaitUpdateOf(const DeviceRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  // Waits for room that the plan reserves for the range, if it does.
  void AwaitRoom(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  // Waits until all may be pinned at once. The lock is held from then on.
  absl::Status Await(absl::Span<const RangeId> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  // Releases the lock, and waits until a copy that holds non-model data has ended. Returns false if
  // there is none.
  bool ReleasePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  // Waits for one of the reasons why not all may be pinned yet, or takes a step to fetch them
  // on-line, and returns the cause of the wait.
  absl::StatusOr<StallCause> AwaitOne(absl::Span<const RangeId> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  void WriteOnDevice(RangeId id, int64_t offset_bytes, const std::byte* from, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  absl::StatusOr<PendingWrite> BeginHostWrite(DeviceRange& range, int64_t offset_bytes,
                                              const std::byte* from, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);

  DeviceTier tier_;
  std::function<bool()> pending_release_ ABSL_GUARDED_BY(tier_.mutex);
};

}  // namespace gemini::client
