// SPDX-License-Identifier: Apache-2.0
// Keeps track of the HOST slots of one space: which are free, which chunk is in each, how many
// handles hold each in place, and which is spilled first.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "client/host/slot_pool.h"
#include "client/host/spill_order.h"
#include "gemini/ids.h"

namespace gemini::client {

struct HostSlot {
  ChunkId owner;         // None if the slot is free, a spare, or was replaced while it was held.
  int holds = 0;         // A slot without owner and without holds is free.
  int update_holds = 0;  // Holds of the updater, or for a late gradient.
  int ending_holds = 0;  // Holds that HostChunk::EndsByItself was called for.
};

class HostSlots {
 public:
  // Starts with all slots free.
  explicit HostSlots(int64_t num_slots);

  const HostSlot& at(SlotId slot) const { return slots_[slot.value()]; }
  // Takes a free slot, which then has no owner and one hold. Returns no value if none is free.
  std::optional<SlotId> Take(bool for_update);
  // Adds a hold, so that the slot is not spilled.
  void Hold(SlotId slot, bool for_update);
  // Drops a hold. After the last one a slot without an owner is free; if it has an owner, the
  // caller must call MaySpill.
  void Drop(SlotId slot, bool for_update);
  // Marks one hold of the slot, or unmarks one, as HostChunk::EndsByItself says.
  void AddEndingHold(SlotId slot, int change);

  void SetOwner(SlotId slot, ChunkId owner) { slots_[slot.value()].owner = owner; }
  // Removes the slot's owner. The slot is free once nobody holds it.
  void Disown(SlotId slot);
  // Lets a slot that has an owner and no hold be spilled. `goes_home`: its chunk's home is NVME
  // (SpaceShape::states_on_nvme), so it is spilled before others.
  void MaySpill(SlotId slot, bool goes_home) { order_.Add(slot, at(slot).owner, goes_home); }
  SpillOrder& order() { return order_; }
  const SpillOrder& order() const { return order_; }
  const SlotPool& free() const { return free_; }

  // Returns how many slots will become free when I/O in flight has ended.
  int64_t coming() const { return coming_; }
  void AddComing(int64_t change) { coming_ += change; }
  // Returns how many slots others than updates hold or are trying to take.
  int64_t of_others() const { return of_others_; }
  void AddOfOthers(int64_t change) { of_others_ += change; }
  int64_t ending_holds() const { return ending_holds_; }  // Over all slots.
  // O(slots).
  int64_t CountHeld() const;
  int64_t CountSparesOfOthers() const;

 private:
  void AddHold(SlotId slot, bool for_update);

  std::vector<HostSlot> slots_;  // By SlotId.
  SlotPool free_;
  SpillOrder order_;
  int64_t coming_ = 0;
  int64_t of_others_ = 0;
  int64_t ending_holds_ = 0;
};

}  // namespace gemini::client
