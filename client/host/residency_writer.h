// SPDX-License-Identifier: Apache-2.0
// Writes the residency words of a space (gemini/shm/residency_shm.h), as their only writer. It
// joins what the chunk store knows (HOST, NVME) and what Residency knows (DEVICE) into one word for
// each chunk.
// Thread: any for SetBelow, EnterDevice and LeaveDevice. Between the last two, a chunk's word
//         belongs to the caller of SetOnDevice, who has a lock of its own. That call takes no lock
//         here and makes one relaxed store, because every pin makes it.
// Change: states change as in gemini/chunk_state.h; any other change is a broken invariant.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gemini/ids.h"
#include "gemini/shm/commit_shm.h"
#include "gemini/shm/residency_shm.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class ResidencyWriter {
 public:
  // `words` are num_chunks zeros in the client segment; they outlive this.
  ResidencyWriter(std::atomic<uint64_t>* words, int64_t num_chunks);
  ResidencyWriter(const ResidencyWriter&) = delete;
  ResidencyWriter& operator=(const ResidencyWriter&) = delete;

  // Says where the chunk is stored below DEVICE; no value means FREE. The word shows that while the
  // chunk is not on DEVICE.
  void SetBelow(ChunkId chunk, std::optional<ChunkSlot> slot);

  // Says that the chunk is now on DEVICE too, in `slot`: HOLD and clean.
  void EnterDevice(ChunkId chunk, SlotId slot);
  // Says how many pins the copy on DEVICE has and whether it is dirty. Call it between EnterDevice
  // and LeaveDevice only.
  void SetOnDevice(ChunkId chunk, SlotId slot, int pins, bool dirty);
  // Says that the copy on DEVICE, which nobody pins, is given up.
  void LeaveDevice(ChunkId chunk);

  const Mutex& mutex() const ABSL_LOCK_RETURNED(mutex_) { return mutex_; }  // To name its order.

 private:
  struct Chunk {
    std::optional<ChunkSlot> below;
    bool on_device = false;
    ChunkState state = ChunkState::kFree;  // As published; the segment itself is not read back.
  };

  void Publish(ChunkId chunk, const ChunkResidency& residency);
  void PublishBelow(ChunkId chunk);

  std::atomic<uint64_t>* const words_;
  // Not ABSL_GUARDED_BY: SetOnDevice relies on ownership. See Thread above.
  Mutex mutex_;
  std::vector<Chunk> chunks_;
};

}  // namespace gemini::client
