// SPDX-License-Identifier: Apache-2.0
// Keeps the chunks of one space below DEVICE: in HOST slots of a chunk's size, and on NVME where
// HOST has no room. It also knows which version of each bundle is committed.
// Thread: any. Calls block for NVMe I/O when a chunk is not in HOST, and for a commit while an
//         update is pending (client/host/update_ledger.h). No lock is held meanwhile.
// Errors: on an error nothing has changed, except that chunks may have been spilled and that
// ChunkWrites counts the call.
// Spill:  when HOST is full, the chunk that the plan uses last leaves it, or, without a plan, the
//         least recently used one. It is written to NVME unless it is there. Optimizer states whose
//         home is NVME (SpaceShape::states_on_nvme) are written there as soon as their bundle
//         awaits no commit.
// Commit: a committed chunk is never overwritten. Its new bytes get a fresh slot, a commit record
//         names the slot, and then the commit word names the record (client/host/chunk_places.h).
// Copies: a committed chunk that was read back from NVME stays there too, as its record says, and
//         its HOST copy is evicted without a write. An uncommitted chunk has one copy. A chunk
//         whose bytes NVMe lost gives DATA_LOSS until new bytes replace them.
// Ahead:  a ChunkMover reads what is used next, and writes what will be spilled in any case, before
//         it is asked for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host/space_tiers.h"
#include "client/host/space_updates.h"
#include "gemini/ids.h"
#include "policies/simulator/host_foresight.h"

namespace gemini::client {

class ChunkStore {
 public:
  // Starts with all chunks FREE. `connection` outlives this; `generation` is that of the lease.
  ChunkStore(std::string name, SpaceMemory memory, UniqueFd kick, const Connection& connection,
             uint64_t generation, SpaceTimeline timeline, bool nvme_checksums);

  const std::string& name() const { return tiers_.name; }
  int64_t chunk_bytes() const { return memory().shape().chunk_bytes; }
  const StateFormat& format() const { return memory().shape().format; }  // Of trainable bundles.
  int64_t num_bundles() const { return memory().shape().num_bundles; }
  const SpaceMemory& memory() const { return tiers_.memory; }  // What other processes see.

  // Brings the chunk's bytes into HOST and holds them there. If its bundle awaits a commit, waits
  // for it and brings the new version; a gradient is brought at once. The caller may write the
  // bytes only if the chunk is uncommitted, as gradients are. `foreseen`: whether the plan, if
  // there is one, contains this use. INVALID_ARGUMENT: there is no such chunk. NOT_FOUND: it is
  // FREE. RESOURCE_EXHAUSTED: no HOST slot can be freed; the message says how many are held and
  // what to raise. UNAVAILABLE: the server is gone. DATA_LOSS: its bytes are lost, or the disk
  // failed when another chunk was spilled for it. FAILED_PRECONDITION: it is on DEVICE alone. Any
  // code: that of the update that it waited for and that failed.
  absl::StatusOr<HostChunk> Acquire(ChunkId chunk, bool foreseen = true);
  // As Acquire for an uncommitted chunk; a FREE one becomes HOLD with zero bytes. Waits while its
  // bundle awaits a commit, because the update reads it. FAILED_PRECONDITION: the chunk is
  // committed.
  absl::StatusOr<HostChunk> AcquireUncommitted(ChunkId chunk);
  // As AcquireUncommitted, but the bytes are arbitrary: the caller writes all of them.
  absl::StatusOr<HostChunk> AcquireToOverwrite(ChunkId chunk);
  // As AcquireToOverwrite, for bytes that the caller has on DEVICE. Does not wait for a commit that
  // itself waits for them (SpaceUpdates::AwaitsGradient). If the result is for_update(), its holder
  // may wait for nothing but the copy before it releases the result.
  absl::StatusOr<HostChunk> AcquireForWriteBack(ChunkId chunk);
  // Acquires a spare: a slot that belongs to no chunk yet, with arbitrary bytes. While updates are
  // pending, waits until others than the updater may hold one more slot and one more spare.
  absl::StatusOr<HostChunk> AcquireSpare();
  // As Acquire and AcquireSpare, for the updater: they wait for no commit. It holds at most
  // UpdateSlots slots (gemini/plan/spare_slots.h).
  absl::StatusOr<HostChunk> AcquireForUpdate(ChunkId chunk);
  absl::StatusOr<HostChunk> AcquireSpareForUpdate();

  // Commits `fresh` as the bundle's new chunks of these kinds at `step`; its other chunks stay as
  // they are. Each handle is a spare, or the chunk itself from AcquireUncommitted, and all its
  // bytes are written. Afterwards the handles are empty, and the slots that they replace are free
  // as soon as nobody holds them. INVALID_ARGUMENT: `step` is below the committed one or out of
  // range, or a handle is for a gradient, named twice, or of another chunk.
  absl::Status Commit(BundleId bundle, int64_t step,
                      absl::Span<std::pair<ChunkKind, HostChunk>> fresh);
  // Commits the spare `fresh` as the chunk's bytes at the step that is already committed, as a
  // write-back does. FAILED_PRECONDITION: the chunk is not committed.
  absl::Status Replace(ChunkId chunk, HostChunk fresh);
  // Makes an uncommitted chunk FREE. Only copies in flight may hold it; waits for them and for a
  // pending commit. Does nothing if that update failed.
  void Free(ChunkId chunk);

  int64_t CommittedStep(BundleId bundle) const;  // -1: nothing is committed.
  // Return whether the chunk is part of its bundle's committed version, and where the commit record
  // says that it is stored (no value: nowhere).
  bool IsCommitted(ChunkId chunk) const;
  std::optional<ChunkSlot> CommittedPlace(ChunkId chunk) const;
  bool HasPayload(ChunkId chunk) const;    // Whether it has bytes, DEVICE included: it is not FREE.
  bool AwaitsCommit(ChunkId chunk) const;  // Whether Acquire would wait for a commit.
  ChunkWrites WriteCounts(ChunkId chunk) const;
  // Calls `look` with the bytes of the bundle's gradient chunk if that is in HOST and nobody holds
  // it; nobody writes them meanwhile. Returns WriteCounts().all of that moment, or no value if the
  // chunk is elsewhere or held.
  std::optional<int64_t> PeekGradient(BundleId bundle,
                                      absl::FunctionRef<void(const std::byte*)> look);

  // Sets which chunks a plan will use and when; an empty foresight means that there is no plan.
  // Ignored with states_on_nvme, because plans do not model that.
  void Foresee(policies::HostForesight foresight);
  StoredBytes stored_bytes() const;
  ResidencyWriter& residency_writer() { return tiers_.residency; }  // For Residency.
  SpaceCounters& counters() { return tiers_.counters; }
  const SpaceTimeline& timeline() const { return tiers_.timeline; }
  SpaceUpdates& updates() { return updates_; }
  SpaceTiers& tiers() { return tiers_; }  // For ChunkMover.

 private:
  absl::Status CheckId(ChunkId chunk) const;
  // Waits until the chunk is not busy and, as `access` needs, for its commit and until one more
  // slot may be held. Errors: of the update that failed.
  absl::Status AwaitAccess(ChunkId chunk, ChunkAccess access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  absl::StatusOr<HostChunk> AcquireToRead(ChunkId chunk, ChunkAccess access, bool foreseen);
  absl::StatusOr<HostChunk> AcquireToWrite(ChunkId chunk, ChunkAccess access, bool keep_bytes);
  absl::Status CommitLocked(BundleId bundle, int64_t step,
                            absl::Span<std::pair<ChunkKind, HostChunk>> fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  void TellUse(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);

  SpaceTiers tiers_;
  SpaceUpdates updates_;
};

}  // namespace gemini::client
