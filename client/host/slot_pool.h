// SPDX-License-Identifier: Apache-2.0
// Keeps track of which slots of one tier of a space are free.
// Thread: none of its own; the caller locks.
// Units:  slots, ids from 0 to num_slots - 1.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "gemini/ids.h"
#include "gemini/system/check.h"

namespace gemini::client {

class SlotPool {
 public:
  // Starts with all slots free; the lowest are taken first.
  explicit SlotPool(int64_t num_slots) : num_slots_(num_slots), taken_(num_slots, false) {
    free_.reserve(num_slots);
    for (int64_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(SlotId(slot));
  }

  // Takes the free slot that was given back last. Returns no value if all are taken.
  std::optional<SlotId> Take() {
    if (free_.empty()) return std::nullopt;
    const SlotId slot = free_.back();
    free_.pop_back();
    taken_[slot.value()] = true;
    return slot;
  }
  // Gives a taken slot back.
  void Give(SlotId slot) {
    SetFree(slot);
    free_.push_back(slot);
  }
  // Gives a taken slot back so that it is taken again only after all that are free now. O(free
  // slots).
  void GiveToTakeLast(SlotId slot) {
    SetFree(slot);
    free_.insert(free_.begin(), slot);
  }

  int64_t num_slots() const { return num_slots_; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_used() const { return num_slots_ - num_free(); }

 private:
  void SetFree(SlotId slot) {
    GEMINI_CHECK(slot.value() >= 0 && slot.value() < num_slots_ && taken_[slot.value()]);
    taken_[slot.value()] = false;
  }

  const int64_t num_slots_;
  std::vector<SlotId> free_;
  std::vector<bool> taken_;
};

}  // namespace gemini::client
