// SPDX-License-Identifier: Apache-2.0
// Which of the HOST slots that may be spilled goes first: one whose chunk has its home on NVME, the
// one that waits longest; else the one whose chunk is used last by what a plan foresees, or the
// least recently used.
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

  // From now on the slot, with this chunk, may be spilled; or may not.
  void Add(SlotId slot, ChunkId chunk, bool goes_home = false) {
    (goes_home ? going_home_ : recent_).Add(slot.value());
    chunk_of_[slot.value()] = chunk;
  }
  void Remove(SlotId slot) {
    (going_home_.contains(slot.value()) ? going_home_ : recent_).Remove(slot.value());
  }

  // Empty: nothing is foreseen.
  void Foresee(policies::HostForesight foresight) { foresight_ = std::move(foresight); }
  void Used(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Used(chunk);
  }
  void Left(ChunkId chunk) {
    if (!foresight_.empty()) foresight_.Left(chunk);
  }
  policies::HostForesight& foresight() { return foresight_; }
  const policies::HostForesight& foresight() const { return foresight_; }

  // The first that goes home; no slot: none does.
  SlotId FirstGoingHome() const { return SlotId(going_home_.oldest()); }
  // No slot: none may be spilled. With foresight O(slots).
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
