// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/slot_assignment.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "gemini/system/check.h"

namespace gemini::policies {
namespace {

constexpr int32_t kNoClaim = std::numeric_limits<int32_t>::max();

}  // namespace

std::vector<int32_t> AssignSlots(int32_t num_positions, int32_t num_slots,
                                 std::vector<Stay>& stays) {
  using TimeAndSlot = std::pair<int32_t, int32_t>;
  // By slot: when the stay begins that has it into the next round, and of which range.
  std::vector<TimeAndSlot> claims(num_slots, {kNoClaim, 0});
  // Slots in use with the last interval of their use; the free ones with a claim, the soonest
  // first; and the others with the interval since which they are free.
  std::priority_queue<TimeAndSlot, std::vector<TimeAndSlot>, std::greater<TimeAndSlot>> in_use;
  std::set<TimeAndSlot> claimed, free;
  std::vector<int32_t> order;
  int32_t next_slot = num_slots;
  for (size_t i = 0; i < stays.size(); ++i) {
    Stay& stay = stays[i];
    if (stay.needed != kAlways) order.push_back(static_cast<int32_t>(i));
    if (stay.needed != kAlways && stay.last < num_positions) continue;
    stay.slot = --next_slot;
    if (stay.needed == kAlways) continue;
    claims[stay.slot] = {stay.needed, stay.range};
    in_use.push({stay.last - num_positions, stay.slot});
  }
  GEMINI_CHECK(next_slot >= 0);
  for (int32_t slot = 0; slot < next_slot; ++slot) {
    free.insert({std::numeric_limits<int32_t>::min(), slot});
  }
  // Among those needed at the same time the longest chooses first.
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair(stays[a].needed, -stays[a].last) < std::pair(stays[b].needed, -stays[b].last);
  });
  std::vector<int32_t> without_place;
  for (const int32_t i : order) {
    Stay& stay = stays[i];
    for (; !in_use.empty() && in_use.top().first < stay.needed; in_use.pop()) {
      const auto [last, slot] = in_use.top();
      if (claims[slot].first != kNoClaim) {
        claimed.insert({claims[slot].first, slot});
      } else {
        free.insert({last, slot});
      }
    }
    if (stay.last >= num_positions) {
      // Its claim was broken, or its slot is still taken by the same range from the round before.
      if (claims[stay.slot].first != kNoClaim && claimed.erase({stay.needed, stay.slot}) == 0) {
        without_place.push_back(stay.range);
      }
      continue;
    }
    const auto soonest = claimed.upper_bound({stay.last, num_slots});
    if (soonest != claimed.end()) {
      stay.slot = soonest->second;
      claimed.erase(soonest);
    } else if (!free.empty()) {
      stay.slot = free.begin()->second;
      free.erase(free.begin());
    } else {
      GEMINI_CHECK(!claimed.empty());
      const auto latest = std::prev(claimed.end());
      stay.slot = latest->second;
      claimed.erase(latest);
      without_place.push_back(claims[stay.slot].second);
      claims[stay.slot].first = kNoClaim;
    }
    in_use.push({stay.last, stay.slot});
  }
  return without_place;
}

}  // namespace gemini::policies
