// SPDX-License-Identifier: Apache-2.0
// Describes one range of chunks on DEVICE: its chunks, its state, its slots and its pins.
// Thread: none of its own; the caller locks.
// Units: a range is one chunk, or the consecutive chunks of one tensor that spans them. It occupies
// adjacent DEVICE slots. A chunk is in one range at most.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/copy/copy_engine.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

using RangeId = Id<struct RangeTag>;

struct ResidencyStats {
  int64_t fetch_bytes = 0;        // To DEVICE, ever.
  int64_t evict_bytes = 0;        // From DEVICE, ever: write-backs, and Writes that went to HOST.
  int64_t stall_ns = 0;           // Waits for copies, I/O, commits and room, ever (StallCause).
  int64_t pinned_peak_bytes = 0;  // The largest sum of chunks pinned at one time: the floor seen.
  std::array<int64_t, kNumStallCauses> stall_by_cause_ns = {};  // Parts of stall_ns, by StallCause.
};

// Names the chunks of a range: those of `kind` in num_bundles bundles from `first`.
struct RangeChunks {
  ChunkStore* store = nullptr;
  BundleId first;
  int64_t num_bundles = 0;
  ChunkKind kind = ChunkKind::kParam;
  // The payload of each chunk. On DEVICE payloads are adjacent, from the first slot on.
  int64_t payload_bytes = 0;
  ChunkId chunk(int64_t index) const { return ChunkOf(BundleId(first.value() + index), kind); }
  int64_t offset_bytes(int64_t index) const { return index * payload_bytes; }
  // Returns the first and the last of the range's slots that hold bytes of the chunk, by their
  // number in the range.
  std::pair<int64_t, int64_t> slots_of(int64_t index) const {
    return {offset_bytes(index) / store->chunk_bytes(),
            (offset_bytes(index + 1) - 1) / store->chunk_bytes()};
  }
};

// Where a range is, and whether it may move. RangeTable::Change has the legal changes.
enum class RangeState : uint8_t {
  kAbsent,     // It is not on DEVICE.
  kReserved,   // It has slots, but no bytes: a plan keeps this room for a gradient.
  kIncoming,   // A fetch writes to its slots.
  kDiscarded,  // It was dropped while incoming, and is absent when its fetch has ended.
  kWriting,    // A write to it on DEVICE is being enqueued.
  kSettling,   // All writes to its slots are enqueued. `settled` is behind them.
  kResident,
  kCleaning,  // It is being written back, and may be pinned.
  kLeaving,   // It is being written back, most likely to be evicted. It may not be pinned.
};

struct DeviceRange : RangeChunks {
  RangeState state = RangeState::kAbsent;
  bool dirty = false;
  bool is_online = false;     // It was fetched on-line.
  bool is_published = false;  // The residency words show it on DEVICE.
  int pins = 0;
  int host_writers = 0;    // Writes to it in HOST that are being enqueued.
  int64_t acquiring = -1;  // The chunk that its fetch waits for in HOST, or -1.
  SlotId slot;             // First DEVICE slot; none while absent.
  int64_t last_use = 0;
  CopyEvent settled;
  CopyEvent used;  // Behind the operators that pinned it.
  // Behind copies from and to its HOST slots: earlier fetches, and writes there.
  CopyEvent host_quiet;

  // Returns whether it may be pinned. Operators that pin it wait for `settled`.
  bool is_there() const {
    return state == RangeState::kResident || state == RangeState::kSettling ||
           state == RangeState::kCleaning;
  }
  // Returns whether a fetch of it is in progress.
  bool is_incoming() const {
    return state == RangeState::kIncoming || state == RangeState::kDiscarded;
  }
  // Returns whether its bytes are on their way, so that nobody else may move or drop them.
  bool is_moving() const {
    return is_incoming() || state == RangeState::kWriting || state == RangeState::kCleaning ||
           state == RangeState::kLeaving;
  }
  // Returns the event behind everything that reads or writes its DEVICE slots, except the operators
  // that pin it now.
  CopyEvent quiet() const {
    CopyEvent event = settled;
    event.Join(used);
    return event;
  }
  // Returns the event behind quiet() and everything that uses its HOST slots.
  CopyEvent all_quiet() const {
    CopyEvent event = quiet();
    event.Join(host_quiet);
    return event;
  }
};

// Returns OK if nothing pins the range. FAILED_PRECONDITION: it is pinned.
absl::Status CheckUnpinned(const DeviceRange& range);

}  // namespace gemini::client
