// SPDX-License-Identifier: Apache-2.0
// Decides which of the HOST slots that may be spilled is spilled first. Chunks whose home is NVME
// (SpaceShape::states_on_nvme) come first, in the order of waiting; then the chunk that the plan
// uses last or, without a plan, the least recently used one.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "client/host/lru_list.h"
#include "gemini/ids.h"
#include "policies/simulator/host_foresight.h"

namespace gemini::client {

class SpillOrder {
 public:
  explicit SpillOrder(int64_t num_slots)
      : recent_(num_slots), going_home_(num_slots), chunk_of_(num_slots) {}

  // Add lets the slot, with this chunk, be spilled from now on; Remove ends that. `goes_home`: the
  // chunk has its home on NVME.
  void Add(SlotId slot, ChunkId chunk, bool goes_home = false) {
    (goes_home ? going_home_ : recent_).Add(slot.value());
    chunk_of_[slot.value()] = chunk;
  }
  void Remove(SlotId slot) {
    (going_home_.contains(slot.value()) ? going_home_ : recent_).Remove(slot.value());
  }

  // Sets what a plan foresees. If it is empty, there is no plan. Used and Left tell it that a chunk
  // was used, or has left HOST.
  void Foresee(policies::HostForesight foresight) { foresight_ = std::move(foresight); }
  void Used(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Used(chunk);
  }
  void Left(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Left(chunk);
  }
  policies::HostForesight& foresight() { return foresight_; }
  const policies::HostForesight& foresight() const { return foresight_; }

  // Returns the first slot whose chunk has its home on NVME, or no slot if there is none.
  SlotId FirstGoingHome() const { return SlotId(going_home_.oldest()); }
  // Returns the slot to spill first, or no slot if none may be spilled. O(slots) with a plan, else
  // O(1).
  SlotId First() const {
    if (going_home_.oldest() != LruList::kNone) return FirstGoingHome();
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
  LruList recent_, going_home_;    // Of slots; each is in one at most.
  std::vector<ChunkId> chunk_of_;  // By slot.
  policies::HostForesight foresight_;
};

}  // namespace gemini::client
