// SPDX-License-Identifier: Apache-2.0
// Keeps the chunks of one space below DEVICE: in HOST slots of a chunk's size, and on NVME where
// HOST has no room. It also knows which version of each bundle is committed.
// Thread: any. Calls block for NVMe I/O when a chunk is not in HOST, and for a commit while an
//         update is pending (client/host/update_ledger.h). No lock is held meanwhile.
// Errors: on an error nothing has changed, but that chunks may have been spilled.
// Spill:  when HOST is full, what a plan uses last leaves, or what was used least recently.
//         Optimizer states whose home is NVME leave as soon as no update is pending.
// Commit: every change of a committed chunk is out of place: fresh slot, record, commit word
//         (client/host/chunk_places.h).
// Copies: a committed chunk that was read back from NVME stays there too, as its record says, and
//         its HOST copy is evicted without a write. An uncommitted chunk has one copy. What NVMe
//         lost is DATA_LOSS until new bytes replace it.
// Ahead:  a ChunkMover reads what is used next, and writes what leaves in any case, unasked.
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

  // Brings the chunk's bytes into HOST, those of the version that is awaited when there is one.
  // They may be written only if the chunk is uncommitted (a gradient). `foreseen` says that a plan
  // has this use. NOT_FOUND: the chunk is FREE. RESOURCE_EXHAUSTED: no HOST slot can be freed; it
  // says how many are held and what to raise. UNAVAILABLE: the server is gone. DATA_LOSS: its bytes
  // are lost, or a spill's. FAILED_PRECONDITION: it is on DEVICE alone. An update's failure has any
  // code.
  absl::StatusOr<HostChunk> Acquire(ChunkId chunk, bool foreseen = true);
  // As Acquire for an uncommitted chunk; a FREE one becomes HOLD with zero bytes. Waits while its
  // bundle awaits a commit, which reads it. FAILED_PRECONDITION: the chunk is committed.
  absl::StatusOr<HostChunk> AcquireUncommitted(ChunkId chunk);
  // As AcquireUncommitted, but the bytes are arbitrary: the caller writes all of them.
  absl::StatusOr<HostChunk> AcquireToOverwrite(ChunkId chunk);
  // As AcquireToOverwrite, for bytes that the caller has on DEVICE: does not wait for a commit that
  // awaits them (SpaceUpdates::AwaitsGradient). The holder of one that is for_update() waits for
  // the copy alone before it releases it.
  absl::StatusOr<HostChunk> AcquireForWriteBack(ChunkId chunk);
  // Acquires a slot of no chunk yet; its bytes are arbitrary.
  absl::StatusOr<HostChunk> AcquireSpare();
  // For the updater, which waits for no commit, and holds UpdateSlots at most.
  absl::StatusOr<HostChunk> AcquireForUpdate(ChunkId chunk);
  absl::StatusOr<HostChunk> AcquireSpareForUpdate();

  // Commits `fresh` as the new chunks of their kinds at `step`; others stay as they are. Each is a
  // spare, or the chunk itself from AcquireUncommitted, and complete; the handles are empty then,
  // and what they replace is free when no longer held. INVALID_ARGUMENT: below the committed step,
  // a gradient, another's slot.
  absl::Status Commit(BundleId bundle, int64_t step,
                      absl::Span<std::pair<ChunkKind, HostChunk>> fresh);
  // As Commit of a spare, at the step that is committed: a write-back. FAILED_PRECONDITION: it is
  // not committed.
  absl::Status Replace(ChunkId chunk, HostChunk fresh);
  // Makes an uncommitted chunk FREE. Only copies in flight may hold it. Waits for a pending commit,
  // and does nothing if the update failed.
  void Free(ChunkId chunk);

  int64_t CommittedStep(BundleId bundle) const;  // -1: nothing is committed.
  // Whether the chunk is part of its bundle's committed version; and where that lies by its record.
  bool IsCommitted(ChunkId chunk) const;
  std::optional<ChunkSlot> CommittedPlace(ChunkId chunk) const;
  bool HasPayload(ChunkId chunk) const;    // Whether it has bytes, DEVICE included: it is not FREE.
  bool AwaitsCommit(ChunkId chunk) const;  // Whether Acquire would wait for a commit.
  ChunkWrites WriteCounts(ChunkId chunk) const;
  // Calls `look` with the bytes of a gradient chunk that is in HOST and that nobody holds; nobody
  // writes them meanwhile. Returns WriteCounts().all of then; nothing if it is elsewhere, or held.
  std::optional<int64_t> PeekGradient(BundleId bundle,
                                      absl::FunctionRef<void(const std::byte*)> look);

  // Says what a plan does, or by an empty foresight that there is none. Not followed with
  // states_on_nvme, which plans do not know of.
  void Foresee(policies::HostForesight foresight);
  StoredBytes stored_bytes() const;
  ResidencyWriter& residency_writer() { return tiers_.residency; }  // For Residency.
  SpaceCounters& counters() { return tiers_.counters; }
  const SpaceTimeline& timeline() const { return tiers_.timeline; }
  SpaceUpdates& updates() { return updates_; }
  SpaceTiers& tiers() { return tiers_; }  // For ChunkMover.

 private:
  absl::Status CheckId(ChunkId chunk) const;
  // Waits for I/O of the chunk and, as `access` needs, for its commit and for a slot. Errors: of
  // the update.
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
