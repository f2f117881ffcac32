// SPDX-License-Identifier: Apache-2.0
// Keeps the ranges of a session: their states, which DEVICE slots they have, how often they are
// pinned, and which of them were used least recently. It alone changes these, and what the
// residency words say of DEVICE.
// Thread: none of its own; the caller locks. Nothing here waits.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_range.h"
#include "client/device/device_slots.h"
#include "client/host/chunk_store.h"
#include "client/host/lru_list.h"
#include "gemini/ids.h"

namespace gemini::client {

class RangeTable {
 public:
  // `arena` has num_slots * chunk_bytes, and outlives this.
  RangeTable(std::byte* arena, int64_t num_slots, int64_t chunk_bytes);
  RangeTable(const RangeTable&) = delete;

  // As Residency::AddRange and Residency::FindRange.
  RangeId Add(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind);
  absl::StatusOr<RangeId> Find(const ChunkStore& store, BundleId first, int64_t num_bundles,
                               ChunkKind kind) const;

  int64_t size() const { return static_cast<int64_t>(ranges_.size()); }
  // The reference stays valid, and the range's RangeChunks never change.
  DeviceRange& at(RangeId id) { return ranges_[id.value()]; }
  const DeviceRange& at(RangeId id) const { return ranges_[id.value()]; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  int64_t BytesOf(const DeviceRange& range) const { return range.num_bundles * chunk_bytes_; }
  std::byte* AddressOf(SlotId slot) const { return arena_ + slot.value() * chunk_bytes_; }
  // Returns the address of a chunk of a range that has slots.
  std::byte* AddressOf(const DeviceRange& range, int64_t index) const {
    return AddressOf(range.slot) + range.offset_bytes(index);
  }

  // Changes the state of a range, and nothing else. The change must be a legal one.
  static void Change(DeviceRange& range, RangeState to);
  // Gives an absent range its slots, which are free: it is kReserved or kIncoming then.
  void TakeSlots(RangeId id, SlotId slot, RangeState to);
  // Makes a range that is kIncoming or kWriting kSettling: what was enqueued for it is done when
  // `settled` is.
  void Enter(RangeId id, const CopyEvent& settled);
  // Frees the slots of a range that is not pinned, and makes it absent. Does nothing to a range
  // without slots.
  void Leave(RangeId id);
  // Updates the range's residency words after a change of `pins` or `dirty`.
  void Publish(const DeviceRange& range) const {
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      range.store->residency_writer().SetOnDevice(range.chunk(i), SlotId(range.slot.value() + i),
                                                  range.pins, range.dirty);
    }
  }

  // Adds a pin to a range for which is_there() holds, and returns its address.
  std::byte* Pin(RangeId id) {
    DeviceRange& range = at(id);
    if (range.pins++ == 0) {
      unpinned_.Remove(id.value());
      pinned_bytes_ += BytesOf(range);
      pinned_peak_bytes_ = std::max(pinned_peak_bytes_, pinned_bytes_);
    }
    Publish(range);
    return AddressOf(range.slot);
  }
  // Drops a pin, as Residency::Unpin.
  void Unpin(RangeId id, bool dirty, const CopyEvent& after);
  int64_t pinned_bytes() const { return pinned_bytes_; }
  int64_t pinned_peak_bytes() const { return pinned_peak_bytes_; }
  // Returns the range that was used least recently among those that may be evicted: neither pinned
  // nor moving. With `behind`, returns the next one after that. Returns no range if there is no
  // other.
  RangeId NextEvictable(RangeId behind = RangeId()) const;

  const DeviceSlots& slots() const { return slots_; }
  void SetUsableSlots(int64_t num_slots) { slots_.SetUsable(num_slots); }
  // Returns whether the slots from `slot` on are taken, or the range has slots.
  bool IsOccupied(RangeId id, SlotId slot) const;
  // Returns the event behind the last use of a slot by a range that has left.
  CopyEvent vacated(SlotId slot) const { return vacated_[slot.value()]; }
  // Returns the event behind which the chunk's DEVICE slots may be written to, and its bytes in
  // HOST are complete.
  CopyEvent FetchableAfter(const DeviceRange& range, int64_t index) const;

 private:
  std::byte* const arena_;
  const int64_t chunk_bytes_;
  std::deque<DeviceRange> ranges_;  // By RangeId.
  std::map<std::pair<const ChunkStore*, ChunkId>, RangeId> range_of_chunk_;
  DeviceSlots slots_;
  std::vector<CopyEvent> vacated_;  // By slot.
  LruList unpinned_{0};             // Those that have slots, except while kIncoming or kDiscarded.
  int64_t clock_ = 0;
  int64_t pinned_bytes_ = 0;
  int64_t pinned_peak_bytes_ = 0;
};

}  // namespace gemini::client
