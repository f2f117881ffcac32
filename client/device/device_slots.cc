// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_slots.h"

#include <algorithm>
#include <limits>

#include "gemini/system/check.h"

namespace gemini::client {

std::optional<SlotId> DeviceSlots::FindFree(int64_t count) const {
  if (count == 1) {
    for (int64_t slot = num_usable_ - 1; slot >= 0; --slot) {
      if (occupants_[slot] == kNobody) return SlotId(slot);
    }
    return std::nullopt;
  }
  int64_t run = 0;
  for (int64_t slot = 0; slot < num_usable_; ++slot) {
    run = occupants_[slot] == kNobody ? run + 1 : 0;
    if (run == count) return SlotId(slot - count + 1);
  }
  return std::nullopt;
}

std::optional<SlotId> DeviceSlots::FindOldest(int64_t count,
                                              absl::FunctionRef<int64_t(int64_t)> last_use) const {
  std::optional<SlotId> best;
  int64_t best_use = std::numeric_limits<int64_t>::max();
  for (int64_t first = 0; first + count <= num_usable_; ++first) {
    int64_t newest = 0;
    for (int64_t slot = first; slot < first + count; ++slot) {
      if (occupants_[slot] == kNobody) continue;
      const int64_t use = last_use(occupants_[slot]);
      if (use < 0) {
        newest = -1;
        first = slot;  // No window over this slot can do.
        break;
      }
      newest = std::max(newest, use);
    }
    if (newest < 0 || newest >= best_use) continue;
    best = SlotId(first);
    best_use = newest;
  }
  return best;
}

bool DeviceSlots::IsFree(SlotId first, int64_t count) const {
  for (int64_t slot = first.value(); slot < first.value() + count; ++slot) {
    if (occupants_[slot] != kNobody) return false;
  }
  return true;
}

void DeviceSlots::Take(SlotId first, int64_t count, int64_t occupant) {
  GEMINI_CHECK(occupant >= 0 && first.value() >= 0 && first.value() + count <= num_slots());
  for (int64_t slot = first.value(); slot < first.value() + count; ++slot) {
    GEMINI_CHECK(occupants_[slot] == kNobody);
    occupants_[slot] = occupant;
  }
  num_used_ += count;
}

void DeviceSlots::Free(SlotId first, int64_t count) {
  GEMINI_CHECK(first.value() >= 0 && first.value() + count <= num_slots());
  for (int64_t slot = first.value(); slot < first.value() + count; ++slot) {
    GEMINI_CHECK(occupants_[slot] != kNobody);
    occupants_[slot] = kNobody;
  }
  num_used_ -= count;
}

}  // namespace gemini::client
