// SPDX-License-Identifier: Apache-2.0
// Keeps track of which slots of the DEVICE arena are taken. It finds runs of adjacent free slots
// and, where there is none, the run whose occupants should be evicted. A copy of it can be used to
// try a placement.
// Thread: none of its own; the caller locks.
// Units: slots, from 0 to num_slots - 1.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gemini/ids.h"

namespace gemini::client {

class DeviceSlots {
 public:
  explicit DeviceSlots(int64_t num_slots)
      : occupants_(num_slots, kNobody), num_usable_(num_slots) {}

  // Limits what is found from now on to the first `num_slots`. Occupants of other slots stay until
  // those are freed.
  void SetUsable(int64_t num_slots) { num_usable_ = num_slots; }
  int64_t num_usable() const { return num_usable_; }

  // Finds `num_slots` (> 0) adjacent free slots; no value if there are none. Single slots come from
  // the top and runs from the bottom, so that single chunks do not split the room for tensors that
  // span. O(slots).
  std::optional<SlotId> FindFree(int64_t num_slots) const;

  // Finds the `num_slots` adjacent slots whose most recently used occupant was used the longest
  // ago; no value if an occupant that must stay is in each run. `last_use` returns an occupant's
  // time, or a negative number if it must stay. O(slots * num_slots).
  std::optional<SlotId> FindOldest(int64_t num_slots,
                                   absl::FunctionRef<int64_t(int64_t occupant)> last_use) const;

  // Returns whether slots [first, first + num_slots) are free.
  bool IsFree(SlotId first, int64_t num_slots) const;
  // Marks the free slots [first, first + num_slots) as taken by `occupant` (>= 0).
  void Take(SlotId first, int64_t num_slots, int64_t occupant);
  // Frees taken slots.
  void Free(SlotId first, int64_t num_slots);

  static constexpr int64_t kNobody = -1;
  int64_t occupant(SlotId slot) const { return occupants_[slot.value()]; }
  int64_t num_slots() const { return static_cast<int64_t>(occupants_.size()); }
  int64_t num_used() const { return num_used_; }

 private:
  std::vector<int64_t> occupants_;
  int64_t num_usable_;
  int64_t num_used_ = 0;
};

}  // namespace gemini::client
