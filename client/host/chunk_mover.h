// SPDX-License-Identifier: Apache-2.0
// Moves chunks of a space between HOST and NVME before they are asked for, so that reading,
// updating and writing overlap, as in the pipeline of ZeRO-Infinity (Rajbhandari et al.,
// arXiv:2104.07857, section 5.2.2).
// Reads:  with a plan, the chunks that it foresees (policies/simulator/host_foresight.h). They
//         replace chunks that the plan uses later, and kFreeSlots slots stay free. Without a plan,
//         the chunks that the next updates use, into free slots only: first those of the bundle
//         that is being updated, then those of the bundles to come, in the order of PendingCommits.
// Writes: optimizer states whose home is NVME (SpaceShape::states_on_nvme), once their update is
//         committed. Their HOST slots are free when the commit record names the place on NVME.
// Slots:  a chunk that was read is not held, so whoever needs its slot takes it. A chunk in flight
//         counts as a slot that is about to become free. So a mover waits for I/O alone, and
//         whoever waits for a mover does too.
// Errors: a failed move ends reading for updates, or writing, until the next update begins. With a
//         plan it ends the foresight. Whoever needs the chunk or its slot gets the error. A chunk
//         that is lost is left out.
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
  ~ChunkMover();  // Blocks until the moves in flight have ended.
  ChunkMover(const ChunkMover&) = delete;
  ChunkMover& operator=(const ChunkMover&) = delete;

  // Starts kReadersAhead threads named gemini-ahead that read what is foreseen: one may spill a
  // chunk while the other reads. With more, more chunks would be read and given up than is needed.
  void StartForPlan();
  // Starts four threads named gemini-ahead that read for updates and four named gemini-behind that
  // write: each moves one chunk at a time and computes its checksum, and a disk is fast only with
  // several requests in flight.
  void StartForUpdates();

  // The loop bodies of these threads. Each waits until a chunk is to be read (or, with a plan, room
  // is to be made for it) or written, and does that. Returns false once End was called.
  bool ReadForeseen();
  bool ReadForUpdate();
  bool WriteBehind();
  void End();

 private:
  void Start(int threads, const char* name, bool (ChunkMover::*step)());
  bool IsMissing(ChunkId chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  std::optional<ChunkId> NextForUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  std::optional<ChunkId> NextForeseen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  // Reads the chunk into a free slot. Returns OK if it is in HOST then, or is lost.
  absl::Status Read(ChunkId chunk, ChunkAccess access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  void TellMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);

  SpaceTiers& tiers_;
  bool ended_ ABSL_GUARDED_BY(tiers_.mutex) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gemini::client
