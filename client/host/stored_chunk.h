// SPDX-License-Identifier: Apache-2.0
// What a ChunkStore knows of one chunk, and the small values that it takes and returns.
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

// How many times a chunk was acquired for writing.
struct ChunkWrites {
  int64_t all = 0;
  int64_t from_device = 0;  // Of them, for what it had there.
};

struct StoredChunk {
  SlotId host;
  SlotId nvme;        // The valid copy when both are there: `host` is then a cache.
  absl::Status loss;  // Not OK: `nvme` was read, and what was written there is lost.
  SlotId device;      // Its only valid copy, when set: the other two are not.
  bool busy = false;  // I/O is under way; nobody else touches the chunk.
  bool committed = false;
  ChunkWrites writes;
};

struct StoredBytes {
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  int64_t nvme_read_bytes = 0;  // Ever, as the next.
  int64_t nvme_written_bytes = 0;
};

// A bundle whose version of an intent's step is complete on DEVICE already: its slots in the
// session's arena.
struct DeviceVersion {
  BundleId bundle;
  KindMap<SlotId> slots;  // Of the space's UpdatedKinds.
};

}  // namespace gemini::client
