// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/planned_slots.h"

#include <algorithm>
#include <limits>

#include "gemini/system/check.h"

namespace gemini::policies {

PlannedSlots::PlannedSlots(int32_t num_slots, bool oldest_first, bool has_runs)
    : oldest_first_(oldest_first),
      has_runs_(has_runs),
      occupants_(num_slots, kNobody),
      firsts_(num_slots, 0),
      counts_(num_slots, 0),
      stamps_(num_slots, 0),
      reserved_(num_slots),
      runs_(has_runs ? num_slots : 0) {
  for (int32_t slot = 0; slot < num_slots; ++slot) {
    PushFree(slot, std::numeric_limits<int32_t>::min());
  }
}

void PlannedSlots::PushFree(int32_t slot, int32_t since) {
  free_.push({.reserved = reserved_[slot],
              .since = oldest_first_ ? since : 0,
              .slot = slot,
              .stamp = ++stamps_[slot]});
}

void PlannedSlots::Reserve(int32_t slot) {
  reserved_[slot] = true;
  if (occupants_[slot] == kNobody) PushFree(slot, std::numeric_limits<int32_t>::min());
}

int32_t PlannedSlots::TakeSingle(int32_t range) {
  for (;;) {
    GEMINI_CHECK(!free_.empty());
    const FreeSlot top = free_.top();
    free_.pop();
    if (occupants_[top.slot] != kNobody || stamps_[top.slot] != top.stamp) continue;
    Take(top.slot, 1, range);
    return top.slot;
  }
}

void PlannedSlots::Take(int32_t first, int32_t count, int32_t range) {
  GEMINI_CHECK(first >= 0 && count > 0 && count <= num_slots() - first);
  for (int32_t slot = first; slot < first + count; ++slot) {
    GEMINI_CHECK(occupants_[slot] == kNobody);
    occupants_[slot] = range;
    firsts_[slot] = first;
  }
  counts_[first] = count;
  if (has_runs_) runs_.Set(first, count, false);
  num_used_ += count;
}

void PlannedSlots::Free(int32_t first, int32_t count, int32_t since) {
  for (int32_t slot = first; slot < first + count; ++slot) {
    GEMINI_CHECK(occupants_[slot] != kNobody);
    occupants_[slot] = kNobody;
    PushFree(slot, since);
  }
  if (has_runs_) runs_.Set(first, count, true);
  num_used_ -= count;
}

int32_t PlannedSlots::FindFree(int32_t count) {
  if (!oldest_first_) return runs_.Find(0, count);
  int32_t first = runs_.Find(next_run_, count);
  if (first < 0) first = runs_.Find(0, count);
  if (first >= 0) next_run_ = first + count;
  return first;
}

}  // namespace gemini::policies
