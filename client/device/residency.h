// SPDX-License-Identifier: Apache-2.0
// Which chunks are on DEVICE, who pins them, and what makes room. Sole author of what the residency
// words say of DEVICE. Ranges come and go in two ways: on-line, fetched when an operator asks for
// them with the least recently used making room; and by a plan, moved ahead of the operators
// (PlannedMoves).
// Thread: any. A pin of a resident range makes no system call and allocates nothing; others block
//         for their I/O, for what is written back on-line, when many on-line fetches are under way,
//         and where CopyEngine::MakeOperatorsWait does. On-line moves hold the lock meanwhile,
//         planned ones and all waits for them do not. That cannot deadlock: copy workers, landings,
//         the chunk store and the server call nothing here, the updater only BringGradient, and
//         none waits for a pin; on-line moves begin when no chunk that they need awaits its commit,
//         and no gradient on DEVICE is dirty that does, but a late one. Locks, in this order:
//         Residency, PlannedMoves, ChunkStore, ResidencyWriter.
// Order:  operators of a thread that pins a range come after the copies to it, and copies and
//         operators that come into its slots, or write it back, after what Unpin was told of.
// Units:  a range is one chunk, or the consecutive chunks of one tensor that spans them; it lies in
//         adjacent DEVICE slots. A chunk is in one range at most.
// Update: in HOST: Flush a dirty range before (or BringGradient later), Drop it once its bundles
//         await their commit: its copy is stale. On DEVICE: pinned, and clean before
//         (client/update/device_update.h).
// Errors: RESOURCE_EXHAUSTED when the budget cannot hold what must be pinned at once; nothing is
//         pinned then. What ChunkStore returns passes through. A copy that fails after its pin:
//         CopyEngine::status.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/copy/copy_engine.h"
#include "client/device/copy_batch.h"
#include "client/device/copy_landings.h"
#include "client/device/device_budget.h"
#include "client/device/device_range.h"
#include "client/device/device_slots.h"
#include "client/device/pending_write.h"
#include "client/device/planned_moves.h"
#include "client/device/stall_times.h"
#include "client/host/chunk_store.h"
#include "client/host/lru_list.h"
#include "gemini/ids.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class Residency {
 public:
  // `arena` has num_slots * chunk_bytes. All outlive this.
  Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
            int64_t chunk_bytes);
  Residency(const Residency&) = delete;

  // Adds the range of `num_bundles` chunks of `kind` from `first`; the same range again has the
  // same id. `store` outlives this and has the same chunk_bytes.
  RangeId AddRange(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind);

  // Pins each range of `ranges` (repeats count), fetching what is not there, and gives the address
  // of each one's first byte, for operators that the calling thread begins next: they come after
  // copies under way. All or nothing. Succeeds whenever these and what others have pinned fit into
  // the budget beside non-model data, but for gaps between others' ranges. A gradient waits for its
  // update.
  absl::Status Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses);
  // Drops one pin; after the last it may leave, behind `after`: the operators that used it; all of
  // the calling thread, if not given. `dirty`: its bytes were written while pinned.
  void Unpin(RangeId range, bool dirty, const CopyEvent& after);
  void Unpin(RangeId range, bool dirty) { Unpin(range, dirty, copies_.AfterOperators()); }

  // Copies `size_bytes` from DEVICE memory `source` into the range at offset_bytes, where its
  // newest bytes are (its DEVICE copy, which becomes dirty, or HOST; FREE chunks become HOLD, zero
  // elsewhere), behind the calling thread's operators. `alone`: the range has no other bytes of
  // use, so the room that the plan has for it on DEVICE will do. Returns when all is enqueued
  // (Write: done in HOST); `source` lives until the result is done, its operators longer. Who pins,
  // writes, flushes, drops or fetches the range comes after. Waits for a commit that a bundle
  // awaits.
  // FAILED_PRECONDITION: the range is committed. INVALID_ARGUMENT: past its end. On an error in the
  // middle of a range that spans, what came before it is written.
  absl::StatusOr<PendingWrite> BeginWrite(RangeId range, int64_t offset_bytes, const void* source,
                                          int64_t size_bytes, bool alone = false);
  absl::Status Write(RangeId range, int64_t offset_bytes, const void* source, int64_t size_bytes);
  // Waits for a write to the range; the time counts as a stall for transfer.
  void AwaitWrite(RangeId range, PendingWrite& write);
  // Writes the range back if it is dirty; it stays on DEVICE, clean. FAILED_PRECONDITION: pinned.
  absl::Status Flush(RangeId range);
  // For the updater: as Flush of a gradient that its bundles await, pinned or not; tells the store.
  absl::Status BringGradient(RangeId range);
  // Forgets the DEVICE copy, dirty or not, also one that is on its way. FAILED_PRECONDITION:
  // pinned.
  absl::Status Drop(RangeId range);
  SlotId DeviceSlot(RangeId range) const;  // Its first slot; none while it is not on DEVICE.
  // Evicts unpinned ranges, least recently used first, until `size_bytes` more fit into the budget:
  // a stall for room. Returns whether they fit; `why` may get the last write-back's error. For
  // non-model data's allocator; another thread may be quicker, so charge, and ask again when that
  // fails.
  bool MakeRoom(int64_t size_bytes, absl::Status* why = nullptr);
  // Changes the budget, within the arena. A smaller one ends the plan, and evicts until the rest
  // fits: waits until nobody uses what is beyond it. FAILED_PRECONDITION: pins, RESOURCE_EXHAUSTED:
  // non-model data is in the way; the budget is changed nevertheless: call again between operators.
  absl::Status SetBudget(int64_t device_bytes);
  // MakeRoom calls it without a lock: waits for a copy that holds non-model data; false: there is
  // none.
  void set_pending_release(std::function<bool()> release);
  ResidencyStats stats() const;
  StallTimes& stalls() { return stalls_; }
  CopyEngine& copies() { return copies_; }
  int64_t num_slots() const;  // That the budget has.
  int64_t chunk_bytes() const { return chunk_bytes_; }
  // --- For a plan's own threads (null: there is none; EvictPlanned: any thread): no lock in waits;
  // each ends soon after it.
  void set_planned_moves(PlannedMoves* moves);
  // NOT_FOUND: there is no such range.
  absl::StatusOr<RangeId> FindRange(const ChunkStore& store, BundleId first, int64_t num_bundles,
                                    ChunkKind kind) const;
  RangeChunks Describe(RangeId range) const;
  // When nothing planned is under way, evicts all but those of `keep` in their slots there; the
  // slot of one that is elsewhere becomes none. FAILED_PRECONDITION: pinned.
  absl::Status Vacate(absl::Span<std::pair<RangeId, SlotId>> keep);
  // Waits until the range is not on DEVICE and the slots from `slot` are free, then takes and
  // charges them: for a fetch, which EndFetch ends, or (`blank`) for a BeginWrite.
  FetchStart BeginFetch(RangeId range, SlotId slot, bool blank);
  // Enqueues the copy of a chunk from `host`, held until the event is done; null: zeros.
  CopyEvent FetchChunk(RangeId range, int64_t index, const std::byte* host);
  // All its copies are enqueued, `last` behind the others; or not, and it is not on DEVICE.
  void EndFetch(RangeId range, CopyEvent last, bool all);
  void Land();          // What EndFetch left under way is done, and holds no HOST slot any more.
  void AwaitPlanned();  // Blocks until no planned move is under way, nor BringGradient.
  // Evicts the range if it is on DEVICE; blocks while it is written back. FAILED_PRECONDITION:
  // pinned. `stays`: is only written back, and may be pinned before and meanwhile.
  absl::Status EvictPlanned(RangeId range, bool stays);
  void Nudge();  // Who waits here looks again at what PlannedMoves says.
 private:
  using Presence = DeviceRange::Presence;
  using Range = DeviceRange;

  int64_t BytesOf(const Range& range) const { return range.num_bundles * chunk_bytes_; }
  std::byte* AddressOf(SlotId slot) const { return arena_ + slot.value() * chunk_bytes_; }
  void WaitForChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitWhileMoving(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits while an update reads the gradients of the range, or is to.
  absl::Status AwaitUpdateOf(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellGradientIsBelow(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the room that the plan keeps for the range, if it does.
  void AwaitRoom(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOnDevice(int64_t id, int64_t offset_bytes, const std::byte* from, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CopyOut(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // Lets go of it.
  void Settle(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(absl::Span<const RangeId> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for one reason why not all are there, and gives its cause; kOnline: they must be brought
  // on-line.
  absl::StatusOr<StallCause> AwaitOne(absl::Span<const RangeId> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On-line placement (residency_online.cc).
  absl::Status BringIn(absl::Span<const RangeId> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds slots for `missing`, and who must leave them; nothing: there are none. `move_all` takes
  // every unpinned range off DEVICE first, those of the wanted set too, and places these again.
  std::optional<RangeReplacement> Place(std::vector<int64_t> missing, bool move_all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges what it adds, with more victims as the budget needs them. False: it cannot be.
  bool Charge(RangeReplacement& replacement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const RangeReplacement& replacement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom(absl::Span<const RangeId> ids) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes an unpinned range off DEVICE, but not its charge. On an error it stays.
  absl::Status Evict(int64_t range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteBack(Range& range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(int64_t range, SlotId slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(int64_t range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeSlots(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether its slots are taken, or its range is on DEVICE.
  bool IsOccupied(const RangePlacement& fetch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Behind it the chunk's slots, the range at `first`, take bytes, and those in HOST are whole.
  CopyEvent FetchableAfter(const Range& range, SlotId first, int64_t index) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<PendingWrite> BeginHostWrite(Range& range, int64_t offset_bytes,
                                              const std::byte* from, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceBudget& budget_;
  CopyEngine& copies_;
  std::byte* const arena_;
  const int64_t num_arena_slots_;
  const int64_t chunk_bytes_;
  StallTimes stalls_;
  mutable Mutex mutex_;
  std::condition_variable changed_;  // A range came or left, or PlannedMoves has news.
  int64_t waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  PlannedMoves* planned_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t moving_ ABSL_GUARDED_BY(mutex_) = 0;  // Moves under way without the lock.
  std::optional<RangePlacement> waiting_fetch_ ABSL_GUARDED_BY(mutex_);
  std::function<bool()> pending_release_ ABSL_GUARDED_BY(mutex_);
  std::deque<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // By RangeId; stay where they are.
  std::map<std::pair<const ChunkStore*, ChunkId>, int64_t> range_of_chunk_ ABSL_GUARDED_BY(mutex_);
  DeviceSlots slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<CopyEvent> vacated_ ABSL_GUARDED_BY(mutex_);  // By slot: nobody uses it any more.
  LruList evictable_ ABSL_GUARDED_BY(mutex_){0};            // Not absent, unpinned, idle.
  int64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ResidencyStats stats_ ABSL_GUARDED_BY(mutex_);
  CopyLandings landings_;
};

}  // namespace gemini::client
