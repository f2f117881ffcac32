// SPDX-License-Identifier: Apache-2.0
// The write-backs that one call of Residency has under way, with what must happen when each is
// done: a HOST slot let go, or a written-back parameter committed in its new slot; and the fetches
// that it begins beside them.
// Thread: one at a time; the caller locks.
// Bound:  holds at most kBatchSlots HOST slots: one more waits for the oldest copy. A slot that is
//         kept for late gradients is let go before another one is acquired.
// Errors: on the way in only; what was enqueued always ends, in Drain or the destructor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/device/copy_landings.h"
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

  // Enqueues the copy of the chunk to `device`, behind `after`, which ends by itself in `landings`.
  // Blocks while these are full. Errors: as ChunkStore::Acquire.
  absl::StatusOr<CopyEvent> Fetch(ChunkStore& store, ChunkId chunk, std::byte* device,
                                  CopyEvent after, CopyLandings& landings);

  // Enqueues the copy of the chunk's bytes from `device` to HOST, behind `after`: into its own slot
  // when uncommitted, also a gradient that its bundle's update awaits (others call
  // SpaceUpdates::GradientArrived); else into a new one, committed at the same step when drained;
  // at once where it has a master (client/host/edited_parameter.h). Errors: as
  // ChunkStore::AcquireSpare and Acquire.
  absl::StatusOr<CopyEvent> WriteBack(ChunkStore& store, ChunkId chunk, const std::byte* device,
                                      CopyEvent after);

  // Blocks until all write-backs are done, and does what depends on them.
  void Drain();

 private:
  struct Entry {
    CopyEvent event;
    HostChunk host;
    // Null unless the HOST slot is a new version of this chunk.
    ChunkStore* commit_to = nullptr;
    ChunkId chunk;
  };

  // Waits for the oldest copy, and does what depends on it.
  void FinishOldest();
  // Acquires a HOST slot; when none can be freed, lets go of those that wait here, and tries again.
  absl::StatusOr<HostChunk> Acquire(absl::FunctionRef<absl::StatusOr<HostChunk>()> acquire);

  CopyEngine& copies_;
  std::deque<Entry> entries_;
};

}  // namespace gemini::client
