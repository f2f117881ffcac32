// SPDX-License-Identifier: Apache-2.0
// What Residency keeps for one range of chunks, and for the moves that it is about to make.
// Thread: none of its own; Residency locks.
// Units: as in client/device/residency.h.
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

struct DeviceRange : RangeChunks {
  // kReserved: it has slots, but no bytes. kIncoming: its slots are being written to. kSettling:
  // all writes to its slots are enqueued, and `settled` is behind them; operators that pin it wait
  // for that. kLeaving: it is being written back with the lock released.
  enum class Presence : uint8_t { kAbsent, kReserved, kIncoming, kSettling, kResident, kLeaving };

  Presence presence = Presence::kAbsent;
  bool dirty = false;
  bool wanted = false;     // In the set that is fetched on-line.
  bool leaving = false;    // A victim of the placement under way.
  bool discarded = false;  // Dropped while incoming.
  bool busy = false;       // Its bytes are copied with the lock released: it must not move.
  bool is_online = false;  // It was fetched on-line.
  int pins = 0;
  int host_writers = 0;  // BeginWrites with the lock released.
  SlotId slot;           // First DEVICE slot; none while absent.
  int64_t last_use = 0;
  CopyEvent settled;
  CopyEvent used;  // Behind the operators that pinned it.
  // Behind copies from and to its HOST slots: earlier fetches, and Writes there.
  CopyEvent host_quiet;
  bool is_there() const {
    return presence == Presence::kResident || presence == Presence::kSettling;
  }
  // Returns the event behind everything that reads or writes its DEVICE slots, except the operators
  // that pin it now.
  CopyEvent quiet() const {
    CopyEvent event = settled;
    event.Join(used);
    return event;
  }
  // Returns quiet(), and behind everything that uses its HOST slots.
  CopyEvent all_quiet() const {
    CopyEvent event = quiet();
    event.Join(host_quiet);
    return event;
  }
};

enum class FetchStart { kStarted, kNoBudget, kEnded };

struct RangePlacement {
  int64_t range = 0;
  SlotId slot;
};

// Ranges that are fetched into DEVICE slots, and those that leave for them.
struct RangeReplacement {
  std::vector<RangePlacement> placements;
  std::vector<int64_t> victims;
  int64_t placed_bytes = 0;
  int64_t freed_bytes = 0;
};

// Returns OK if nothing pins the range. FAILED_PRECONDITION: it is pinned.
absl::Status CheckUnpinned(const DeviceRange& range);

}  // namespace gemini::client
