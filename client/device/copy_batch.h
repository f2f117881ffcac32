// SPDX-License-Identifier: Apache-2.0
// Keeps the write-backs that one call has in flight, and does what must happen when each is done:
// its HOST slot is released, or a written-back parameter is committed in its new slot.
// Thread: one at a time; the caller locks.
// Bound: holds at most kBatchSlots HOST slots: one more waits for the oldest copy. A slot that is
// reserved for late gradients is released before another one is acquired.
// Errors: only from the calls that enqueue. What was enqueued always ends, in Drain or the
// destructor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

class CopyBatch {
 public:
  // `copies` outlives this.
  explicit CopyBatch(CopyEngine& copies) : copies_(copies) {}
  CopyBatch(const CopyBatch&) = delete;
  CopyBatch& operator=(const CopyBatch&) = delete;
  ~CopyBatch() { Drain(); }

  // Enqueues the copy of the chunk's bytes from `device` to HOST, behind `after`. An uncommitted
  // chunk, also a gradient that its bundle's update awaits, is copied into its own slot; the caller
  // has to call SpaceUpdates::GradientArrived. Any other chunk is copied into a new slot, which is
  // committed at the same step when drained, or at once if the chunk has a master
  // (client/host/edited_parameter.h). Errors: as ChunkStore::AcquireSpare and Acquire.
  absl::StatusOr<CopyEvent> WriteBack(ChunkStore& store, ChunkId chunk, const std::byte* device,
                                      CopyEvent after);

  // Blocks until all write-backs are done, and releases or commits their slots.
  void Drain();

 private:
  struct Entry {
    CopyEvent event;
    HostChunk host;
    // Null unless the HOST slot is a new version of this chunk.
    ChunkStore* commit_to = nullptr;
    ChunkId chunk;
  };

  // Waits for the oldest copy and does what depends on it.
  void FinishOldest();
  // Acquires a HOST slot. If none can be freed, releases those held here and tries again.
  absl::StatusOr<HostChunk> Acquire(absl::FunctionRef<absl::StatusOr<HostChunk>()> acquire);

  CopyEngine& copies_;
  std::deque<Entry> entries_;
};

}  // namespace gemini::client
