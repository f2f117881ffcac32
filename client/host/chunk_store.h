// SPDX-License-Identifier: Apache-2.0
// Where each chunk of one space lies below DEVICE, in slots of its size, and which version of each
// bundle is committed. When HOST is full it spills to NVME: what a plan uses last, or what was used
// least recently.
// Thread: any; calls block for NVME I/O when a chunk is not in HOST, with the lock let go: the
//         chunk is busy, and who wants it waits. Only I/O makes it busy, and waits for none here
//         but copies that end by themselves: no ring.
// Commit: every change of a committed chunk is out of place: fresh slot, record, commit word. So a
//         reader of the commit words finds a whole version at any moment.
// Update: from BeginUpdate to its commit a bundle awaits its new version: who asks for its
//         parameter or moments, or wants to write its gradient, waits, and it is updated next.
//         Meanwhile others hold all but UpdateSlots HOST slots at most, and wait for more. So the
//         updater waits for I/O and for holds that end by themselves alone, and who waits for it
//         may hold slots: no circle.
// Late:   a gradient may be on DEVICE still when its update begins. Its write-back does not wait
//         for the commit, which waits for it: kLateGradientSlots are kept for that, too, until the
//         copy is done.
// Ahead:  what is used next is read, and what goes to NVME in any case is written, unasked
//         (client/host/chunk_mover.h).
// States: with states_on_nvme the home of optimizer states is NVME: they leave as soon as no update
//         is pending.
// Device: BeginUpdate commits versions made on DEVICE, too: they are nowhere else then, and who
//         asks for their bytes is refused until Replace has brought them back, chunk by chunk.
// Copies: a committed chunk read back from NVME stays there too, as its record says, and its HOST
//         copy is dropped without a write; an uncommitted one has one copy. What NVMe lost is
//         DATA_LOSS until new bytes replace it.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/copy/space_timeline.h"
#include "client/host/commit_writer.h"
#include "client/host/host_chunk.h"
#include "client/host/intent_writer.h"
#include "client/host/move_signals.h"
#include "client/host/nvme_ring_client.h"
#include "client/host/pending_commits.h"
#include "client/host/residency_writer.h"
#include "client/host/slot_pool.h"
#include "client/host/space_counters.h"
#include "client/host/space_memory.h"
#include "client/host/spill_order.h"
#include "client/host/stored_chunk.h"
#include "gemini/ids.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"
#include "policies/simulator/host_foresight.h"

namespace gemini::client {

class ChunkStore final : private HostSlotOwner {
 public:
  // Starts with all chunks FREE. `connection` outlives this; `generation` is that of the lease.
  ChunkStore(std::string name, SpaceMemory memory, UniqueFd kick, const Connection& connection,
             uint64_t generation, SpaceTimeline timeline, bool nvme_checksums);

  const std::string& name() const { return name_; }
  int64_t chunk_bytes() const { return memory_.shape().chunk_bytes; }
  const StateFormat& format() const { return memory_.shape().format; }  // Of trainable bundles.
  int64_t num_bundles() const { return memory_.shape().num_bundles; }
  const SpaceMemory& memory() const { return memory_; }  // What other processes see, to look at.

  // Brings the chunk's bytes into HOST, those of the version that is awaited when there is one.
  // They may be written only if the chunk is uncommitted (a gradient). NOT_FOUND: it is FREE.
  // RESOURCE_EXHAUSTED: no HOST slot can be freed (says how many are held and what to raise).
  // UNAVAILABLE: the server is gone. DATA_LOSS: its bytes are lost, or a spill's.
  // FAILED_PRECONDITION: on DEVICE alone. Others: an update's. `foreseen`: by a plan.
  absl::StatusOr<HostChunk> Acquire(ChunkId chunk, bool foreseen = true);
  // As Acquire for an uncommitted chunk; a FREE one becomes HOLD with zero bytes. Waits while its
  // bundle awaits a commit, which reads it. FAILED_PRECONDITION: the chunk is committed.
  absl::StatusOr<HostChunk> AcquireUncommitted(ChunkId chunk);
  // As AcquireUncommitted, but the bytes are arbitrary: the caller writes all of them.
  absl::StatusOr<HostChunk> AcquireToOverwrite(ChunkId chunk);
  // As AcquireToOverwrite, for the bytes that it has on DEVICE: does not wait for a commit that
  // awaits them (AwaitsGradient). If it is for_update(), its holder waits for the copy alone, and
  // lets go.
  absl::StatusOr<HostChunk> AcquireForWriteBack(ChunkId chunk);
  absl::StatusOr<HostChunk> AcquireSpare();  // Of no chunk yet; its bytes are arbitrary.

  // Commits `fresh` as the new chunks of their kinds at `step`; others stay as they are. Each is a
  // spare, or the chunk itself from AcquireUncommitted, and complete; the handles are empty then,
  // and what they replace is free when no longer held. INVALID_ARGUMENT: below the committed step,
  // a gradient, another's slot.
  absl::Status Commit(BundleId bundle, int64_t step,
                      absl::Span<std::pair<ChunkKind, HostChunk>> fresh);
  // As Commit of a spare, at the step of then: a write-back. FAILED_PRECONDITION: it is not
  // committed.
  absl::Status Replace(ChunkId chunk, HostChunk fresh);
  int64_t CommittedStep(BundleId bundle) const;  // -1: nothing is committed.
  // Whether the chunk is part of its bundle's committed version; and where that lies by its record.
  bool IsCommitted(ChunkId chunk) const;
  std::optional<ChunkSlot> CommittedPlace(ChunkId chunk) const;
  bool HasPayload(ChunkId chunk) const;  // Whether it has bytes, DEVICE included: it is not FREE.
  // Makes an uncommitted chunk FREE (held, if at all, by what ends by itself). Waits for a commit;
  // nothing if it failed.
  void Free(ChunkId chunk);

  // Records the intent, which commits `on_device` at its step and makes `bundles` await their
  // commit at it; then gives up the HOST and NVME copies of `on_device`, when their I/O is done and
  // no copy from there under way. Gradients are complete: of `late_gradients`, some of `bundles`,
  // on DEVICE, else below. On an error nothing has changed.
  // FAILED_PRECONDITION: a bundle still awaits an earlier one, is not below the step, its gradient
  // is held; or an `on_device` chunk is, or is on DEVICE alone. INVALID_ARGUMENT: a bundle twice, a
  // late one not in `bundles`, no such slot, other tensors than the space's. RESOURCE_EXHAUSTED:
  // others hold its HOST slots.
  absl::Status BeginUpdate(const Intent& intent, absl::Span<const BundleId> bundles,
                           absl::Span<const DeviceVersion> on_device = {},
                           absl::Span<const BundleId> late_gradients = {});
  // Whether the bundle is pending and its late gradient has not arrived. And says that it has: that
  // it is complete in HOST or NVME; who writes to it waits for the commit from then on. No-op if
  // none is awaited.
  bool AwaitsGradient(BundleId bundle) const;
  void GradientArrived(BundleId bundle);
  void AwaitLateGradients();  // Blocks until all have arrived, or updates fail.
  // For the updater: the bundle to update next (PendingCommits), each once; nothing: all are taken.
  // If it awaits its gradient, that comes first, with nothing held. It holds UpdateSlots at most.
  std::optional<BundleId> TakeUpdate();
  absl::StatusOr<HostChunk> AcquireForUpdate(ChunkId chunk);
  absl::StatusOr<HostChunk> AcquireSpareForUpdate();
  // Gives `error` to all who wait for a pending bundle, and who come; or lets these be taken once
  // more.
  void FailUpdates(absl::Status error);
  void RetryUpdates();
  absl::Status AwaitCommits();  // Until no bundle awaits one. Errors: the update that failed.
  absl::Status AwaitCommit(BundleId bundle);  // Until this one does not.
  bool AwaitsCommit(ChunkId chunk) const;     // Whether Acquire would wait for one.
  // Calls `look` with the bytes of a gradient chunk that is in HOST and that nobody holds; nobody
  // writes them meanwhile. Returns WriteCounts().all of then. Nothing: it is elsewhere, or held.
  std::optional<int64_t> PeekGradient(BundleId bundle,
                                      absl::FunctionRef<void(const std::byte*)> look);
  ChunkWrites WriteCounts(ChunkId chunk) const;
  // What a plan does; empty: there is none. Not followed with states_on_nvme, which plans do not
  // know of.
  void Foresee(policies::HostForesight foresight);
  StoredBytes stored_bytes() const;
  ResidencyWriter& residency_writer() { return residency_; }  // For Residency.
  SpaceCounters& counters() { return counters_; }
  const SpaceTimeline& timeline() const { return timeline_; }

 private:
  friend class ChunkMover;
  enum class Access : uint8_t { kRead, kWrite, kWriteBack, kUpdate };
  absl::Status CheckId(ChunkId chunk) const;
  // Waits for I/O of the chunk and, as `access` needs, for its commit and for a slot. Errors: of
  // the update.
  absl::Status AwaitAccess(ChunkId chunk, Access access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFetchedFrom(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t MostSlotsOfOthers(bool any_late) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayHoldMore() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayTakeSpare() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitsCommitLocked(ChunkId chunk, Access access) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<HostChunk> AcquireLocked(ChunkId chunk, Access access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<HostChunk> AcquireToWrite(ChunkId chunk, Access access, bool keep_bytes);
  absl::Status CheckIntent(const Intent& intent, absl::Span<const BundleId> bundles,
                           bool late) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOnDevice(const DeviceVersion& version, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitOnDevice(const DeviceVersion& version, int64_t step, int64_t record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CommitLocked(BundleId bundle, int64_t step,
                            absl::Span<std::pair<ChunkKind, HostChunk>> fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a HOST slot, without owner and held once. Where none is free it lets go of the lock to
  // spill.
  absl::StatusOr<SlotId> TakeHostSlot(Access access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the chunk in HOST slot `victim` to NVME, or drops it where it lies there already.
  absl::Status Spill(SlotId victim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellUse(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool GoesHome(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetStatesGoHome(BundleId bundle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<SlotId> TakeNvmeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HostChunk Hold(SlotId slot, Access access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountHold(SlotId slot, Access access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropHold(SlotId slot, bool for_update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(SlotId slot, bool for_update, bool ends_by_itself) override;
  void CountEnding(SlotId slot) override;
  void DropHostCopy(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropNvmeCopy(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishPlace(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // Where it lies now.
  const std::string name_;
  const SpaceMemory memory_;
  NvmeRingClient ring_;
  ResidencyWriter residency_;
  SpaceCounters counters_;
  const SpaceTimeline timeline_;

  mutable Mutex mutex_;
  std::condition_variable idle_;  // Less is busy, awaited or held than before.
  CommitWriter commits_ ABSL_GUARDED_BY(mutex_);
  IntentWriter intents_ ABSL_GUARDED_BY(mutex_);
  PendingCommits pending_ ABSL_GUARDED_BY(mutex_);
  int64_t intent_step_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status update_failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<StoredChunk> chunks_ ABSL_GUARDED_BY(mutex_);   // By ChunkId.
  std::vector<HostSlot> host_slots_ ABSL_GUARDED_BY(mutex_);  // By SlotId.
  SlotPool free_host_ ABSL_GUARDED_BY(mutex_);
  SlotPool free_nvme_ ABSL_GUARDED_BY(mutex_);
  SpillOrder spillable_ ABSL_GUARDED_BY(mutex_);      // HOST slots with an owner that nobody holds.
  int64_t slots_coming_ ABSL_GUARDED_BY(mutex_) = 0;  // HOST slots that I/O under way lets go.
  int64_t slots_of_others_ ABSL_GUARDED_BY(mutex_) = 0;  // HOST slots held not only for_update().
  int64_t ending_holds_ ABSL_GUARDED_BY(mutex_) = 0;     // Of all HOST slots.
  ChunkId in_late_slot_ ABSL_GUARDED_BY(mutex_);         // Holds the slot kept for late gradients.
  MoveSignals moves_ ABSL_GUARDED_BY(mutex_);            // For each ChunkMover.
  StoredBytes moved_ ABSL_GUARDED_BY(mutex_);            // What it counts.
};

}  // namespace gemini::client
