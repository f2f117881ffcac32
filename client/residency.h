// SPDX-License-Identifier: Apache-2.0
// Which chunks are on DEVICE, who pins them, and what makes room: least recently used first, written
// back only when dirty. Sole author of what the residency words say of DEVICE.
// Thread: any. A pin of a resident range makes no system call and allocates nothing; others block for
//         their copies and I/O, and hold the lock meanwhile. That cannot deadlock: copy workers, the
//         chunk store and the server call nothing here and never wait for a pin. Locks are taken in the
//         order Residency, ChunkStore, ResidencyWriter.
// Units:  a range is one chunk, or the consecutive chunks of one tensor that spans them; it lies in
//         adjacent DEVICE slots. A chunk is in one range at most.
// Update: Flush a dirty range before its bundles are updated, Drop it after the commit: its copy on
//         DEVICE is then stale.
// Errors: RESOURCE_EXHAUSTED when the budget cannot hold what must be pinned at once; nothing is
//         pinned then. What ChunkStore returns passes through.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/chunk_store.h"
#include "client/copy_batch.h"
#include "client/copy_engine.h"
#include "client/device_budget.h"
#include "client/device_slots.h"
#include "client/lru_list.h"
#include "client/mutex.h"
#include "client/pending_write.h"
#include "gemini/ids.h"

namespace gemini::client {

using RangeId = Id<struct RangeTag>;

struct ResidencyStats {
  int64_t fetch_bytes = 0;        // To DEVICE, ever.
  int64_t evict_bytes = 0;        // Written back from DEVICE, ever.
  int64_t stall_ns = 0;           // Time that callers of Pin waited for copies or I/O, ever.
  int64_t pinned_peak_bytes = 0;  // The largest sum of chunks pinned at one time: the floor seen.
};

class Residency {
 public:
  // `arena` has num_slots * chunk_bytes. All outlive this.
  Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
            int64_t chunk_bytes);
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Adds the range of `num_bundles` chunks of `kind` (param or grad) from `first`; the same range again
  // has the same id. `store` outlives this and has the same chunk_bytes.
  RangeId AddRange(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind);

  // Pins each range of `ranges` (repeats allowed, counted each time), fetching what is not there, and
  // gives the address of each one's first byte. All or nothing. Succeeds whenever these and what others
  // have pinned fit into the budget beside non-model data, but for gaps between others' ranges.
  absl::Status Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses);

  // Drops one pin of the range. `dirty`: its bytes were written while pinned. At the last pin's end the
  // chunk goes from COMPUTE to HOLD and may be evicted.
  void Unpin(RangeId range, bool dirty);

  // Copies `size_bytes` from DEVICE memory `source` into the range at offset_bytes, where its newest
  // bytes are (its DEVICE copy, which becomes dirty, or HOST; FREE chunks become HOLD, zero elsewhere).
  // Returns when the copies are enqueued; `source` lives until the result is done. Whoever pins, writes,
  // flushes, drops or fetches the range meanwhile comes after them.
  // FAILED_PRECONDITION: the range is committed. INVALID_ARGUMENT: past its end. On an error in the
  // middle of a range that spans, what came before it is written.
  absl::StatusOr<PendingWrite> BeginWrite(RangeId range, int64_t offset_bytes, const void* source,
                                          int64_t size_bytes);
  // BeginWrite, and waits.
  absl::Status Write(RangeId range, int64_t offset_bytes, const void* source, int64_t size_bytes);

  // Writes the range back if it is dirty; it stays on DEVICE, clean. FAILED_PRECONDITION: pinned.
  absl::Status Flush(RangeId range);

  // Forgets the DEVICE copy, dirty or not. FAILED_PRECONDITION: pinned.
  absl::Status Drop(RangeId range);

  // Evicts unpinned ranges, least recently used first, until `size_bytes` more fit into the budget.
  // Returns whether they fit. For the allocator of non-model data; another thread may be quicker, so
  // charge, and ask again when that fails.
  bool MakeRoom(int64_t size_bytes);

  ResidencyStats stats() const;

 private:
  static constexpr SlotId kNoSlot{};

  struct Range {
    ChunkStore* store;
    BundleId first;
    int64_t num_bundles;
    ChunkKind kind;
    SlotId slot = kNoSlot;  // First DEVICE slot; kNoSlot: not on DEVICE.
    int pins = 0;
    bool dirty = false;
    bool settling = false;  // A copy into its slots may be under way: `settled` tells.
    CopyEvent settled{};
    CopyEvent host_written{};  // Behind the last write to its HOST slots.
    bool wanted = false;       // In the set that BringIn works on.
    bool leaving = false;      // A victim of the plan under way.
    int64_t last_use = 0;
  };
  struct Placement {
    int64_t range;
    SlotId slot;
  };
  struct Plan {
    std::vector<Placement> placements;
    std::vector<int64_t> victims;
    int64_t placed_bytes = 0;
    int64_t freed_bytes = 0;
  };

  int64_t BytesOf(const Range& range) const { return range.num_bundles * chunk_bytes_; }
  std::byte* AddressOf(SlotId slot) const { return arena_ + slot.value() * chunk_bytes_; }
  static ChunkId ChunkAt(const Range& range, int64_t index) {
    return ChunkOf(BundleId(range.first.value() + index), range.kind);
  }

  absl::Status BringIn(absl::Span<const RangeId> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds slots for `missing`, and who must leave them; nothing when they cannot be had. `move_all`
  // takes every unpinned range off DEVICE first, those of the wanted set too, and places these again.
  std::optional<Plan> MakePlan(std::vector<int64_t> missing, bool move_all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges what the plan adds, with more victims as the budget needs them. False: it cannot be.
  bool ChargePlan(Plan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const Plan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom(absl::Span<const RangeId> ranges) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes an unpinned range off DEVICE; its charge stays with the caller. On an error it stays.
  absl::Status Evict(int64_t range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteBack(Range& range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(int64_t range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUnpinned(const Range& range) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceBudget& budget_;
  CopyEngine& copies_;
  std::byte* const arena_;
  const int64_t chunk_bytes_;

  mutable Mutex mutex_;
  std::vector<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // By RangeId.
  std::map<std::pair<const ChunkStore*, ChunkId>, int64_t> range_of_chunk_ ABSL_GUARDED_BY(mutex_);
  DeviceSlots slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<CopyEvent> vacated_ ABSL_GUARDED_BY(mutex_);  // By slot: its bytes have left.
  LruList evictable_ ABSL_GUARDED_BY(mutex_){0};            // On DEVICE, unpinned.
  int64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ResidencyStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::client
