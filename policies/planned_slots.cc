// SPDX-License-Identifier: Apache-2.0
#include "policies/planned_slots.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "gemini/check.h"

namespace gemini::policies {

PlannedSlots::PlannedSlots(int32_t num_slots, bool oldest_first)
    : oldest_first_(oldest_first),
      occupants_(num_slots, kNobody),
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

int32_t PlannedSlots::FindRun(int32_t count,
                              absl::FunctionRef<Clearing(int32_t)> clearing_of) const {
  int32_t best = -1;
  std::pair<int64_t, int32_t> best_cost(std::numeric_limits<int64_t>::max(), 0);
  // What the window that ends at `slot` costs: a range's cost is added with its first slot that comes in
  // and taken off with its last that goes out.
  int64_t cost = 0;
  int32_t first_allowed = 0;  // Behind the last slot that must stay as it is.
  Clearing of_range;
  std::vector<int64_t> costs(occupants_.size(), 0);  // By slot: to be taken off when it goes out.
  // Slots of the window that nobody behind them outlasts, with their last intervals, falling.
  std::deque<std::pair<int32_t, int32_t>> latest;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    const int32_t range = occupants_[slot];
    const bool goes_on = range != kNobody && slot > first_allowed && occupants_[slot - 1] == range;
    if (range != kNobody && !goes_on) {
      of_range = clearing_of(range);
      cost += std::max<int64_t>(of_range.cost, 0);
    }
    if (range != kNobody && of_range.cost < 0) {
      first_allowed = slot + 1;
      cost = 0;
      latest.clear();
      continue;
    }
    if (range != kNobody) {
      if (goes_on) costs[slot - 1] = 0;
      costs[slot] = of_range.cost;
    }
    const int32_t last = range == kNobody ? since_[slot] : of_range.last;
    while (!latest.empty() && latest.back().second <= last) latest.pop_back();
    latest.push_back({slot, last});
    const int32_t first = slot - count + 1;
    if (first - 1 >= first_allowed) cost -= costs[first - 1];
    while (latest.front().first < first) latest.pop_front();
    if (first < first_allowed) continue;
    const std::pair<int64_t, int32_t> of_window(cost, oldest_first_ ? latest.front().second : 0);
    if (of_window >= best_cost) continue;
    best = first;
    best_cost = of_window;
  }
  return best;
}

}  // namespace gemini::policies
