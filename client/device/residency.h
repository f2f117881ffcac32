// SPDX-License-Identifier: Apache-2.0
// Keeps track of which chunks are on DEVICE and who pins them, and makes room there by evicting
// others. It alone writes what the residency words say about DEVICE. A range is moved in one of two
// ways. On-line, it is fetched when an operator asks for it, and the least recently used ranges are
// evicted for it. By a plan, it is moved ahead of the operators (PlannedMoves).
// Thread: any. A pin of a resident range makes no system call and allocates nothing. Other calls
// block for their I/O, for on-line write-backs, while many on-line fetches are in flight, and where
// CopyEngine::MakeOperatorsWait does. On-line moves hold the lock meanwhile; planned moves and all
// waits for them do not.
// Locks: Residency, PlannedMoves, ChunkStore, ResidencyWriter, in this order. On-line moves cannot
// deadlock. Copy workers, landings, the chunk store and the server call nothing here, the updater
// calls only BringGradient, and none of them waits for a pin. An on-line move begins only when no
// chunk that it needs awaits its commit. At that time no gradient on DEVICE that awaits one is
// dirty, except a late gradient.
// Order: operators of a thread that pins a range run after the copies to the range. Copies and
// operators that write into its slots, and copies that write it back, run after the operators that
// Unpin was given.
// Units: a range is one chunk, or the consecutive chunks of one tensor that spans them. It lies in
// adjacent DEVICE slots. A chunk is in one range at most.
// Update: before an update in HOST, Flush a dirty range (or BringGradient later), and Drop it once
// its bundles await their commit, because its copy is then stale. Before an update on DEVICE the
// range is pinned and clean (client/update/device_update.h).
// Errors: RESOURCE_EXHAUSTED if the budget cannot hold what must be pinned at once; nothing is
// pinned then. Errors of ChunkStore pass through. For a copy that fails after its pin see
// CopyEngine::status.
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
  // `arena` has num_slots * chunk_bytes. All arguments outlive this.
  Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
            int64_t chunk_bytes);
  Residency(const Residency&) = delete;

  // Adds the range of `num_bundles` chunks of `kind` from `first` and returns its id, which is the
  // same if the range was added before. `store` outlives this and has the same chunk_bytes.
  RangeId AddRange(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind);

  // Pins each range of `ranges` (repeats count), fetching those that are not there, and returns the
  // address of each one's first byte in `addresses`. Operators that the calling thread begins next
  // run after copies in flight to them. Pins all or none. Succeeds whenever these ranges and those
  // pinned by others fit into the budget beside non-model data, unless gaps between the others'
  // ranges prevent it. A gradient waits for its update.
  absl::Status Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses);
  // Drops one pin. After the last pin the range may be evicted, behind `after`: the operators that
  // used it, or all of the calling thread's if not given. `dirty`: its bytes were written while it
  // was pinned.
  void Unpin(RangeId range, bool dirty, const CopyEvent& after);
  void Unpin(RangeId range, bool dirty) { Unpin(range, dirty, copies_.AfterOperators()); }

  // Copies `size_bytes` from DEVICE memory `source` into the range at offset_bytes, behind the
  // calling thread's operators. The copy goes to where the newest bytes are: the DEVICE copy, which
  // becomes dirty, or HOST. FREE chunks become HOLD, with zeros elsewhere. `alone`: no other byte
  // of the range is of use, so the room that the plan reserves for it on DEVICE suffices. Returns
  // when all is enqueued; Write returns when the bytes are in HOST. `source` lives until the result
  // is done, the operators that made it longer. Pins, writes, flushes, drops and fetches of the
  // range run after the copy. Waits for a commit that a bundle awaits. FAILED_PRECONDITION: the
  // range is committed. INVALID_ARGUMENT: past its end. On an error in the middle of a range that
  // spans, the part before it is written.
  absl::StatusOr<PendingWrite> BeginWrite(RangeId range, int64_t offset_bytes, const void* source,
                                          int64_t size_bytes, bool alone = false);
  absl::Status Write(RangeId range, int64_t offset_bytes, const void* source, int64_t size_bytes);
  // Waits for a write to the range. The time counts as a stall for transfer.
  void AwaitWrite(RangeId range, PendingWrite& write);
  // Writes the range back if it is dirty. It stays on DEVICE, clean. FAILED_PRECONDITION: pinned.
  absl::Status Flush(RangeId range);
  // Flushes a gradient that its bundles await, pinned or not, and reports it to the store. For the
  // updater.
  absl::Status BringGradient(RangeId range);
  // Drops the DEVICE copy, dirty or not, even one in flight. FAILED_PRECONDITION: pinned.
  absl::Status Drop(RangeId range);
  SlotId DeviceSlot(RangeId range) const;  // Its first slot; none while not on DEVICE.
  // Evicts unpinned ranges, least recently used first, until `size_bytes` more fit into the budget:
  // a stall for room. Returns whether they fit; `why` may get the last write-back's error. For the
  // allocator of non-model data. Another thread may take the room first, so charge it, and call
  // again if that fails.
  bool MakeRoom(int64_t size_bytes, absl::Status* why = nullptr);
  // Changes the budget, within the arena. A smaller one ends the plan, evicts until the rest fits,
  // and waits until nothing beyond it is in use. FAILED_PRECONDITION: pins are in the way.
  // RESOURCE_EXHAUSTED: non-model data is in the way. The budget is changed all the same: call
  // again between operators.
  absl::Status SetBudget(int64_t device_bytes);
  // Sets a function that MakeRoom calls without a lock. It waits for a copy that holds non-model
  // data, and returns false if there is none.
  void set_pending_release(std::function<bool()> release);
  ResidencyStats stats() const;
  StallTimes& stalls() { return stalls_; }
  CopyEngine& copies() { return copies_; }
  int64_t num_slots() const;  // Those within the budget.
  int64_t chunk_bytes() const { return chunk_bytes_; }
  // --- For a plan's own threads (EvictPlanned: any thread). They wait without the lock, and each
  // returns soon after the plan has ended. Null: there is no plan.
  void set_planned_moves(PlannedMoves* moves);
  // Returns the range's id. NOT_FOUND: there is no such range.
  absl::StatusOr<RangeId> FindRange(const ChunkStore& store, BundleId first, int64_t num_bundles,
                                    ChunkKind kind) const;
  RangeChunks Describe(RangeId range) const;
  // Evicts all ranges except those of `keep` that are in their slots there, once no planned move is
  // in flight. A range of `keep` that is elsewhere gets no slot in `keep`. FAILED_PRECONDITION:
  // pinned.
  absl::Status Vacate(absl::Span<std::pair<RangeId, SlotId>> keep);
  // Waits until the range is not on DEVICE and the slots from `slot` are free, then takes and
  // charges them, for a fetch, which EndFetch ends, or (`blank`) for a BeginWrite.
  FetchStart BeginFetch(RangeId range, SlotId slot, bool blank);
  // Enqueues the copy of a chunk from `host`, which is held until the event is done. Null stands
  // for zeros.
  CopyEvent FetchChunk(RangeId range, int64_t index, const std::byte* host);
  // Ends a fetch. If `all`, its copies are enqueued, `last` behind the others; if not, the range is
  // not on DEVICE.
  void EndFetch(RangeId range, CopyEvent last, bool all);
  void Land();          // Ends a fetch whose copies are done and hold no HOST slot.
  void AwaitPlanned();  // Blocks until no planned move or BringGradient is in flight.
  // Evicts the range if it is on DEVICE, and blocks while it is written back. FAILED_PRECONDITION:
  // pinned. `stays`: it is only written back, and may be pinned before and meanwhile.
  absl::Status EvictPlanned(RangeId range, bool stays);
  void Nudge();  // Makes waiters check PlannedMoves again.
 private:
  using Presence = DeviceRange::Presence;
  using Range = DeviceRange;

  int64_t BytesOf(const Range& range) const { return range.num_bundles * chunk_bytes_; }
  std::byte* AddressOf(SlotId slot) const { return arena_ + slot.value() * chunk_bytes_; }
  void WaitForChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitWhileMoving(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits while an update reads, or is going to read, the gradients of the range.
  absl::Status AwaitUpdateOf(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellGradientIsBelow(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for room that the plan reserves for the range, if it does.
  void AwaitRoom(RangeId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOnDevice(int64_t id, int64_t offset_bytes, const std::byte* from, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases the lock.
  absl::Status CopyOut(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(absl::Span<const RangeId> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for one reason why not all are there, and returns its cause. kOnline: they must be
  // fetched on-line.
  absl::StatusOr<StallCause> AwaitOne(absl::Span<const RangeId> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On-line placement (residency_online.cc).
  absl::Status BringIn(absl::Span<const RangeId> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds slots for `missing`, and the ranges to evict from them; no value if there are none.
  // `move_all` takes every unpinned range off DEVICE first, even those of the wanted set, and
  // places these again.
  std::optional<RangeReplacement> Place(std::vector<int64_t> missing, bool move_all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges what it adds, with more victims if the budget needs them. Returns false if it cannot.
  bool Charge(RangeReplacement& replacement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const RangeReplacement& replacement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom(absl::Span<const RangeId> ids) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes an unpinned range off DEVICE, but keeps its charge. On an error it stays.
  absl::Status Evict(int64_t range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteBack(Range& range, CopyBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(int64_t range, SlotId slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(int64_t range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeSlots(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the slots are taken, or the range is on DEVICE.
  bool IsOccupied(const RangePlacement& fetch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the event behind which the chunk's slots, with the range at `first`, may be written to,
  // and the chunk's bytes in HOST are whole.
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
  std::condition_variable changed_;  // A range arrived or left, or PlannedMoves changed.
  int64_t waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  PlannedMoves* planned_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t moving_ ABSL_GUARDED_BY(mutex_) = 0;  // Moves in flight without the lock.
  std::optional<RangePlacement> waiting_fetch_ ABSL_GUARDED_BY(mutex_);
  std::function<bool()> pending_release_ ABSL_GUARDED_BY(mutex_);
  std::deque<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // By RangeId; stay where they are.
  std::map<std::pair<const ChunkStore*, ChunkId>, int64_t> range_of_chunk_ ABSL_GUARDED_BY(mutex_);
  DeviceSlots slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<CopyEvent> vacated_ ABSL_GUARDED_BY(mutex_);  // By slot: its last user is done.
  LruList evictable_ ABSL_GUARDED_BY(mutex_){0};            // On DEVICE, unpinned and idle.
  int64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ResidencyStats stats_ ABSL_GUARDED_BY(mutex_);
  CopyLandings landings_;
};

}  // namespace gemini::client
