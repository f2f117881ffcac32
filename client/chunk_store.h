// SPDX-License-Identifier: Apache-2.0
// Where each chunk of one space lies below DEVICE (HOST slots, NVME slots), and which version of
// each bundle is committed. Spills the least recently used HOST chunks to NVME when HOST is full.
// Thread: any; calls block for NVME I/O when a chunk is not in HOST.
// Units:  chunks and slots of chunk_bytes.
// Commit: every change of a committed chunk is out of place: fresh slot, record, commit word. So a
//         reader of the commit words finds a whole version at any moment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/ids.h"

namespace gemini::client {

class ChunkStore;

// A HOST slot held in place: it is neither spilled nor given away while this lives. Move-only.
class HostChunk {
 public:
  HostChunk() = default;
  HostChunk(HostChunk&& other) noexcept;
  HostChunk& operator=(HostChunk&& other) noexcept;
  ~HostChunk();
  std::byte* data() const { return data_; }
  explicit operator bool() const { return store_ != nullptr; }

 private:
  friend class ChunkStore;
  ChunkStore* store_ = nullptr;
  SlotId slot_;
  std::byte* data_ = nullptr;
};

class ChunkStore {
 public:
  virtual ~ChunkStore() = default;

  virtual int64_t chunk_bytes() const = 0;

  // Brings the chunk's bytes into HOST. They may be written only if the chunk is uncommitted (a
  // gradient). NOT_FOUND: the chunk is FREE. RESOURCE_EXHAUSTED: no HOST slot can be freed (says
  // how many are held and what to raise). UNAVAILABLE: the server is gone. DATA_LOSS: the disk
  // failed.
  virtual absl::StatusOr<HostChunk> Acquire(ChunkId chunk) = 0;

  // As Acquire for an uncommitted chunk; a FREE one becomes HOLD with zero bytes.
  virtual absl::StatusOr<HostChunk> AcquireUncommitted(ChunkId chunk) = 0;

  // Takes a HOST slot that belongs to no chunk yet; its bytes are arbitrary.
  virtual absl::StatusOr<HostChunk> AcquireSpare() = 0;

  // Commits `fresh` as the new chunks of their kinds at `step`; kinds not named stay as they are.
  // The slots that they replace are free afterwards. The bytes must be complete.
  // INVALID_ARGUMENT: step below the committed one.
  virtual absl::Status Commit(BundleId bundle, int64_t step,
                              absl::Span<std::pair<ChunkKind, HostChunk>> fresh) = 0;

  // The committed step of the bundle; -1 when nothing is committed.
  virtual int64_t CommittedStep(BundleId bundle) const = 0;

  // Makes an uncommitted chunk FREE (no one may hold it).
  virtual void Free(ChunkId chunk) = 0;
};

}  // namespace gemini::client
