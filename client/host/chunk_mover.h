// SPDX-License-Identifier: Apache-2.0
// Moves chunks of a space between HOST and NVME before anybody asks.
// Reads:  what a plan foresees (policies/simulator/host_foresight.h), in the place of what it uses
//         later; kFreeSlots stay free. Without one, what the next updates use: of the bundle that
//         was taken and of those to come, in the order of PendingCommits, into free slots alone.
// Writes: optimizer states whose home is NVME, once their update is committed. Their slots are free
//         when the record names the place on NVME.
// Slots:  what was read is not held, so whoever needs its slot takes it. What is on its way is
//         counted as a slot that comes. So a mover waits for I/O alone, and whoever waits for a
//         mover does too.
// Errors: one ends reading for updates, or writing, until the next update begins, or the foresight;
//         whoever needs the chunk or its slot meets it. A chunk that is lost is left out.
// Thread: any. Owner: the store outlives this.
#pragma once
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

class ChunkMover {
 public:
  explicit ChunkMover(ChunkStore& store) : store_(store) {}
  ChunkMover(const ChunkMover&) = delete;
  ChunkMover& operator=(const ChunkMover&) = delete;

  // For threads of their own: waits until a chunk is to be read, or room made for it, and does
  // that; or until one is to be written. What is foreseen is for two threads: more of them bring
  // and give up more than it takes.
  // False: End was called, ever.
  bool ReadForeseen();
  bool ReadForUpdate();
  bool WriteBehind();
  void End();

 private:
  bool IsMissing(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  std::optional<ChunkId> NextForUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  std::optional<ChunkId> NextForeseen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  // Into a free slot. OK: it is there, or lost.
  absl::Status Read(ChunkId chunk, ChunkStore::Access access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  void TellMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);

  ChunkStore& store_;
  bool ended_ ABSL_GUARDED_BY(store_.mutex_) = false;
};

}  // namespace gemini::client
