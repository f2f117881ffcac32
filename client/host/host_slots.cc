// SPDX-License-Identifier: Apache-2.0
#include "client/host/host_slots.h"

#include <algorithm>

#include "gemini/system/check.h"

namespace gemini::client {

HostSlots::HostSlots(int64_t num_slots) : slots_(num_slots), free_(num_slots), order_(num_slots) {}

std::optional<SlotId> HostSlots::Take(bool for_update) {
  const std::optional<SlotId> slot = free_.Take();
  if (!slot) return std::nullopt;
  slots_[slot->value()] = {};
  AddHold(*slot, for_update);
  return slot;
}

void HostSlots::Hold(SlotId slot, bool for_update) {
  if (at(slot).holds == 0) order_.Remove(slot);
  AddHold(slot, for_update);
}

void HostSlots::AddHold(SlotId id, bool for_update) {
  HostSlot& slot = slots_[id.value()];
  ++slot.holds;
  if (for_update) {
    ++slot.update_holds;
  } else if (slot.holds - slot.update_holds == 1) {
    ++of_others_;
  }
}

void HostSlots::Drop(SlotId id, bool for_update) {
  HostSlot& slot = slots_[id.value()];
  GEMINI_CHECK(slot.holds > 0);
  --slot.holds;
  if (for_update) {
    --slot.update_holds;
  } else if (slot.holds == slot.update_holds) {
    --of_others_;
  }
  if (slot.holds == 0 && slot.owner == ChunkId()) free_.Give(id);
}

void HostSlots::AddEndingHold(SlotId slot, int change) {
  slots_[slot.value()].ending_holds += change;
  ending_holds_ += change;
}

void HostSlots::Disown(SlotId id) {
  HostSlot& slot = slots_[id.value()];
  slot.owner = ChunkId();
  if (slot.holds > 0) return;
  order_.Remove(id);
  free_.Give(id);
}

int64_t HostSlots::CountHeld() const {
  return std::ranges::count_if(slots_, [](const HostSlot& slot) { return slot.holds > 0; });
}

int64_t HostSlots::CountSparesOfOthers() const {
  return std::ranges::count_if(slots_, [](const HostSlot& slot) {
    return slot.owner == ChunkId() && slot.holds > slot.update_holds;
  });
}

}  // namespace gemini::client
