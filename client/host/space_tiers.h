// SPDX-License-Identifier: Apache-2.0
// Holds the state of one space's chunks in HOST and NVME, the lock that guards it, and the moves
// between the two tiers. ChunkStore, SpaceUpdates and ChunkMover work on it.
// Thread: any. The functions that need the lock release it during NVMe I/O. The chunk is busy
//         meanwhile, and whoever wants it waits for `idle`. A thread that makes a chunk busy waits
//         for nothing here but I/O and holds that end without help (HostChunk::EndsByItself), so
//         there is no deadlock. `mutex` is never held over I/O or a callback.
// Owner:  the ChunkStore. Members are public so that clang checks their use against `mutex`.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/space_timeline.h"
#include "client/host/chunk_places.h"
#include "client/host/host_chunk.h"
#include "client/host/nvme_ring_client.h"
#include "client/host/residency_writer.h"
#include "client/host/space_counters.h"
#include "client/host/space_memory.h"
#include "client/host/stored_chunk.h"
#include "client/host/update_ledger.h"
#include "gemini/ids.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini::client {

class SpaceTiers final : public HostSlotOwner {
 public:
  // Takes the arguments of ChunkStore's constructor.
  SpaceTiers(std::string space, SpaceMemory mapped, UniqueFd kick, const Connection& connection,
             uint64_t generation, SpaceTimeline of_space, bool nvme_checksums);

  // Brings the chunk's bytes into HOST, if they are not there, and holds the slot for the caller,
  // who has seen that the chunk is not busy. Errors: of ChunkStore::Acquire.
  absl::StatusOr<SlotId> Bring(ChunkId chunk, ChunkAccess access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Takes a HOST slot, which then has no owner and one hold, and spills if none is free. May wait
  // for slots that I/O or copies in flight will free. RESOURCE_EXHAUSTED: no slot can be freed.
  // Any other error is that of a write to NVME.
  absl::StatusOr<SlotId> TakeHostSlot(ChunkAccess access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Evicts the chunk in HOST slot `victim`: writes it to NVME, unless it is stored there already,
  // and frees the slot. RESOURCE_EXHAUSTED: NVME is full. Any other error is that of the write.
  absl::Status Spill(SlotId victim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Makes a handle of a slot that the caller holds, or passes the error on.
  absl::StatusOr<HostChunk> Handle(absl::StatusOr<SlotId> held, ChunkAccess access);
  void DropHold(SlotId slot, bool for_update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Lets the bundle's optimizer states be written to NVME, if that is their home.
  void LetStatesGoHome(BundleId bundle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  StoredBytes bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const std::string name;
  const SpaceMemory memory;
  const SpaceTimeline timeline;
  ResidencyWriter residency;
  SpaceCounters counters;
  mutable Mutex mutex ABSL_ACQUIRED_BEFORE(residency.mutex());
  std::condition_variable idle;        // A chunk is no longer busy, awaited or held.
  std::condition_variable readable;    // There may be a chunk to read ahead.
  std::condition_variable going_home;  // There may be a chunk to write behind.
  ChunkPlaces places ABSL_GUARDED_BY(mutex);
  UpdateLedger ledger ABSL_GUARDED_BY(mutex);

 private:
  // Moves the bytes, with the lock released meanwhile.
  absl::Status Transfer(IoOperation operation, ChunkId chunk, SlotId host, SlotId nvme)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool GoesHome(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status NoRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Release(SlotId slot, bool for_update, bool ends_by_itself) override;
  void CountEnding(SlotId slot) override;

  NvmeRingClient ring_;
  StoredBytes moved_ ABSL_GUARDED_BY(mutex);
};

}  // namespace gemini::client
