// SPDX-License-Identifier: Apache-2.0
// Defines what a ChunkStore knows of one chunk, and the small values that it takes and returns.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "gemini/ids.h"

namespace gemini::client {

inline constexpr SlotId kNoSlot{};

// What a chunk, or a slot for one, is acquired for.
enum class ChunkAccess : uint8_t {
  kRead,
  kWrite,
  kWriteBack,  // The new bytes are on DEVICE.
  kUpdate,     // By the updater, or for a gradient in the slot that is kept for late ones.
};

// How many times a chunk may have been written: it was acquired for writing, with or without
// success, or freed.
struct ChunkWrites {
  int64_t all = 0;
  int64_t from_device = 0;  // Those of them that were write-backs from DEVICE.
};

struct StoredChunk {
  SlotId host;
  SlotId nvme;        // If both are set, this is the valid copy and `host` a cache.
  absl::Status loss;  // Not OK if a read of `nvme` showed that its bytes are lost.
  SlotId device;      // If set, the only valid copy; the other two are not set.
  bool busy = false;  // A thread moves or reads it, and nobody else touches it.
  bool committed = false;
  ChunkWrites writes;
};

struct StoredBytes {
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  int64_t nvme_read_bytes = 0;  // Since the space was opened, as is the next.
  int64_t nvme_written_bytes = 0;
};

// A bundle whose version for an intent's step is already complete on DEVICE, with its slots in the
// session's arena.
struct DeviceVersion {
  BundleId bundle;
  KindMap<SlotId> slots;  // Of the space's UpdatedKinds.
};

}  // namespace gemini::client
