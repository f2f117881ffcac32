// SPDX-License-Identifier: Apache-2.0
// Which of the HOST slots that may be spilled goes first: the one whose chunk is used last by what a plan
// foresees, or else the least recently used.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "client/lru_list.h"
#include "gemini/ids.h"
#include "policies/host_foresight.h"

namespace gemini::client {

class SpillOrder {
 public:
  explicit SpillOrder(int64_t num_slots) : recent_(num_slots), chunk_of_(num_slots) {}

  // From now on the slot, with this chunk, may be spilled; or may not.
  void Add(SlotId slot, ChunkId chunk) {
    recent_.Add(slot.value());
    chunk_of_[slot.value()] = chunk;
  }
  void Remove(SlotId slot) { recent_.Remove(slot.value()); }

  // Empty: nothing is foreseen.
  void Foresee(policies::HostForesight foresight) { foresight_ = std::move(foresight); }
  void Used(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Used(chunk);
  }
  void Left(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Left(chunk);
  }
  policies::HostForesight& foresight() { return foresight_; }

  // No slot: none may be spilled. With foresight O(slots).
  SlotId First() const {
    if (recent_.oldest() == LruList::kNone) return SlotId();
    if (foresight_.empty()) return SlotId(recent_.oldest());
    int64_t first = LruList::kNone;
    int64_t latest = std::numeric_limits<int64_t>::min();
    for (int64_t slot = recent_.oldest(); slot != LruList::kNone; slot = recent_.newer(slot)) {
      const int64_t next = foresight_.NextUse(chunk_of_[slot]);
      if (next <= latest) continue;
      first = slot;
      latest = next;
    }
    return SlotId(first);
  }

 private:
  LruList recent_;                 // Of slots.
  std::vector<ChunkId> chunk_of_;  // By slot.
  policies::HostForesight foresight_;
};

}  // namespace gemini::client
