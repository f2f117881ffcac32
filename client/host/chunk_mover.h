// SPDX-License-Identifier: Apache-2.0
// Moves chunks of a space between HOST and NVME before anybody asks: reading, updating and writing
// overlap, as in the pipeline of ZeRO-Infinity (Rajbhandari et al., arXiv:2104.07857, section
// 5.2.2).
// Reads:  what a plan foresees (policies/simulator/host_foresight.h), in the place of what it uses
//         later; kFreeSlots stay free. Without a plan it reads what the next updates use, into free
//         slots alone: of the bundle that was taken and of those to come, in the order of
//         PendingCommits.
// Writes: optimizer states whose home is NVME, once their update is committed. Their slots are free
//         when the record names the place on NVME.
// Slots:  what was read is not held, so whoever needs its slot takes it. What is in flight is
//         counted as a slot that comes. So a mover waits for I/O alone, and whoever waits for a
//         mover does too.
// Errors: one ends reading for updates, or writing, until the next update begins, or the foresight;
//         whoever needs the chunk or its slot meets it. A chunk that is lost is left out.
// Thread: any. It has no threads before one of the Start functions is called, once.
// Owner:  the store outlives this.
#pragma once
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

class ChunkMover {
 public:
  explicit ChunkMover(ChunkStore& store) : tiers_(store.tiers()) {}
  ~ChunkMover();  // Blocks until what is in flight has ended.
  ChunkMover(const ChunkMover&) = delete;
  ChunkMover& operator=(const ChunkMover&) = delete;

  // Starts two threads named gemini-ahead that read what is foreseen: one may spill what leaves
  // while the other reads. More of them would bring and give up more than it takes.
  void StartForPlan();
  // Starts four threads named gemini-ahead that read for updates and four named gemini-behind that
  // write: one moves a chunk at a time and takes its checksum, and a disk wants several at once.
  void StartForUpdates();

  // What these threads repeat: waits until a chunk is to be read, or room made for it, and does
  // that; or until one is to be written. False: End was called, ever.
  bool ReadForeseen();
  bool ReadForUpdate();
  bool WriteBehind();
  void End();

 private:
  void Start(int threads, const char* name, bool (ChunkMover::*step)());
  bool IsMissing(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  std::optional<ChunkId> NextForUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  std::optional<ChunkId> NextForeseen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  // Reads into a free slot. OK: the chunk is in HOST, or lost.
  absl::Status Read(ChunkId chunk, ChunkAccess access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  void TellMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);

  SpaceTiers& tiers_;
  bool ended_ ABSL_GUARDED_BY(tiers_.mutex) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gemini::client
