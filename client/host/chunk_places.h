// SPDX-License-Identifier: Apache-2.0
// Knows in which slots of HOST and NVME each chunk of one space is stored, and which version of
// each bundle is committed. It publishes both to other processes, in residency words and commit
// words.
// Thread: none of its own; the caller locks.
// Commit: a commit record names the new slot before the old one can be reused, so a reader of the
//         commit words finds a whole version at any moment.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "client/host/commit_writer.h"
#include "client/host/host_slots.h"
#include "client/host/residency_writer.h"
#include "client/host/slot_pool.h"
#include "client/host/space_memory.h"
#include "client/host/stored_chunk.h"
#include "gemini/ids.h"

namespace gemini::client {

class ChunkPlaces {
 public:
  // Starts with all chunks FREE. `residency` outlives this.
  ChunkPlaces(const SpaceMemory& memory, ResidencyWriter& residency);

  StoredChunk& at(ChunkId chunk) { return chunks_[chunk.value()]; }
  const StoredChunk& at(ChunkId chunk) const { return chunks_[chunk.value()]; }
  HostSlots& host() { return host_; }
  const HostSlots& host() const { return host_; }
  SlotPool& free_nvme() { return free_nvme_; }
  const SlotPool& free_nvme() const { return free_nvme_; }
  CommitWriter& commits() { return commits_; }
  const CommitWriter& commits() const { return commits_; }

  // Returns whether a copy from the chunk's HOST slot to DEVICE is in flight. Such a copy holds the
  // slot until it is done.
  bool IsFetchedFrom(ChunkId chunk) const;
  // Records that the chunk's bytes are in `slot` now. An uncommitted chunk loses its NVMe copy,
  // which is stale as soon as somebody writes to the slot.
  void EnterHost(ChunkId chunk, SlotId slot);
  // Drop the copy, if there is one. A HOST slot that is held becomes free when its last hold ends.
  void DropHostCopy(ChunkId chunk);
  void DropNvmeCopy(ChunkId chunk);
  // Publishes where the chunk is stored now, in its residency word and, if it is committed, in its
  // commit record.
  void Publish(ChunkId chunk);
  // Takes a free NVMe slot, or else that of a chunk that is also in HOST. Returns no value if there
  // is neither. O(HOST slots) if none is free.
  std::optional<SlotId> TakeNvmeSlot();
  // Makes the bytes in `slot`, a spare or the chunk's own HOST slot, its committed ones. The commit
  // record names the slot already.
  void CommitInHost(ChunkId chunk, SlotId slot);
  // Returns the record for a bundle's next version, which was made on DEVICE.
  CommitRecord RecordOf(const DeviceVersion& version, const StateFormat& format) const;
  // Commits that version at `step` by its prepared record (an index of CommitWriter::Prepare), and
  // drops the copies of the version before.
  void CommitOnDevice(const DeviceVersion& version, int64_t step, int64_t record,
                      const StateFormat& format);

 private:
  ResidencyWriter& residency_;
  std::vector<StoredChunk> chunks_;  // By ChunkId.
  HostSlots host_;
  SlotPool free_nvme_;
  CommitWriter commits_;
};

}  // namespace gemini::client
