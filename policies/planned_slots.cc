// SPDX-License-Identifier: Apache-2.0
#include "policies/planned_slots.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gemini/check.h"

namespace gemini::policies {

PlannedSlots::PlannedSlots(int32_t num_slots, bool oldest_first)
    : oldest_first_(oldest_first),
      occupants_(num_slots, kNobody),
      firsts_(num_slots, 0),
      counts_(num_slots, 0),
      since_(num_slots, 0),
      stamps_(num_slots, 0),
      reserved_(num_slots) {
  for (int32_t slot = 0; slot < num_slots; ++slot) {
    PushFree(slot, std::numeric_limits<int32_t>::min());
  }
}

void PlannedSlots::PushFree(int32_t slot, int32_t since) {
  since_[slot] = since;
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
  std::fill_n(firsts_.begin() + first, count, first);
  counts_[first] = count;
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

int32_t PlannedSlots::LeftLongestAgo(int32_t count) {
  // Of seen_, from where the run begins on: those that nobody behind them in it outlasts.
  latest_.clear();
  size_t head = 0;
  int32_t end = 0;  // Those before it are in latest_, or have gone from it.
  int32_t best = cheapest_.front();
  int32_t best_last = std::numeric_limits<int32_t>::max();
  for (const int32_t first : cheapest_) {
    end = std::max(end, first);
    for (;
         end < static_cast<int32_t>(seen_.size()) && seen_[end].first < seen_[first].first + count;
         ++end) {
      while (latest_.size() > head && seen_[latest_.back()].last <= seen_[end].last) {
        latest_.pop_back();
      }
      latest_.push_back(end);
    }
    while (latest_[head] < first) ++head;
    if (const int32_t last = seen_[latest_[head]].last; last < best_last) {
      best = first;
      best_last = last;
    }
  }
  return best;
}

}  // namespace gemini::policies
