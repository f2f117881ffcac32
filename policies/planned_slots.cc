// SPDX-License-Identifier: Apache-2.0
#include "policies/planned_slots.h"

#include <algorithm>
#include <limits>

#include "gemini/check.h"

namespace gemini::policies {

PlannedSlots::PlannedSlots(int32_t num_slots, bool oldest_first)
    : oldest_first_(oldest_first),
      occupants_(num_slots, kNobody),
      stamps_(num_slots, 0),
      reserved_(num_slots) {
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
  GEMINI_CHECK(IsFree(first, count));
  std::fill_n(occupants_.begin() + first, count, range);
  num_used_ += count;
}

void PlannedSlots::Free(int32_t first, int32_t count, int32_t since) {
  for (int32_t slot = first; slot < first + count; ++slot) {
    GEMINI_CHECK(occupants_[slot] != kNobody);
    occupants_[slot] = kNobody;
    PushFree(slot, since);
  }
  num_used_ -= count;
}

bool PlannedSlots::IsFree(int32_t first, int32_t count) const {
  for (int32_t slot = first; slot < first + count; ++slot) {
    if (occupants_[slot] != kNobody) return false;
  }
  return true;
}

int32_t PlannedSlots::FindRun(int32_t count, absl::FunctionRef<int64_t(int32_t)> cost_of) const {
  int32_t best = -1;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  // Occupants of the window that ends at `slot`: their costs are added when their first slot comes in
  // and taken off when their last goes out.
  int64_t cost = 0;
  int32_t blocked_until = 0;  // The first slot behind the last one that must stay.
  std::vector<std::pair<int32_t, int64_t>>
      window;  // Ranges in it, in their order, with their costs.
  size_t window_begin = 0;
  int32_t added = kNobody;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    const int32_t range = occupants_[slot];
    if (range != kNobody && range != added) {
      const int64_t of_range = cost_of(range);
      if (of_range < 0) {
        blocked_until = slot + 1;
        cost = 0;
        window_begin = window.size();
        added = kNobody;
        continue;
      }
      window.push_back({range, of_range});
      cost += of_range;
      added = range;
    }
    const int32_t first = slot - count + 1;
    if (first > 0 && window_begin < window.size() && first - 1 >= blocked_until) {
      const int32_t left = occupants_[first - 1];
      if (left != kNobody && left == window[window_begin].first && occupants_[first] != left) {
        cost -= window[window_begin++].second;
      }
    }
    if (first < blocked_until || cost >= best_cost) continue;
    best = first;
    best_cost = cost;
  }
  return best;
}

}  // namespace gemini::policies
