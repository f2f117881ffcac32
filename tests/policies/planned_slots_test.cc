// SPDX-License-Identifier: Apache-2.0
#include "policies/planned_slots.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

TEST(PlannedSlotsTest, ASingleChunkTakesTheSlotThatIsFreeForLongest) {
  PlannedSlots slots(3, /*oldest_first=*/true);
  for (int32_t range = 0; range < 3; ++range) slots.TakeSingle(range);
  slots.Free(1, 1, /*since=*/5);
  slots.Free(2, 1, /*since=*/3);
  EXPECT_EQ(slots.TakeSingle(7), 2);
  EXPECT_EQ(slots.TakeSingle(8), 1);
  EXPECT_EQ(slots.occupant(2), 7);
  EXPECT_EQ(slots.num_used(), 3);
}

TEST(PlannedSlotsTest, OtherwiseTheTopmostAndRunsTheLowest) {
  PlannedSlots slots(6, /*oldest_first=*/false);
  EXPECT_EQ(slots.TakeSingle(0), 5);
  const auto no_cost = [](int32_t) { return PlannedSlots::Clearing{}; };
  EXPECT_EQ(slots.FindRun(2, no_cost), 0);
  slots.Take(0, 2, 1);
  slots.Free(5, 1, 9);
  EXPECT_EQ(slots.TakeSingle(2), 5);
}

TEST(PlannedSlotsTest, AReservedSlotIsTakenLast) {
  PlannedSlots slots(3, /*oldest_first=*/true);
  slots.Reserve(2);
  slots.Reserve(0);
  EXPECT_EQ(slots.TakeSingle(0), 1);
  EXPECT_EQ(slots.TakeSingle(1), 2);
  EXPECT_EQ(slots.TakeSingle(2), 0);
}

// Every window, one after the other.
int32_t PlainFindRun(const PlannedSlots& slots, int32_t count,
                     const std::vector<PlannedSlots::Clearing>& of_range,
                     const std::vector<int32_t>& since, bool oldest_first) {
  int32_t best = -1;
  std::tuple<int64_t, int32_t> best_cost;
  for (int32_t first = 0; first + count <= slots.num_slots(); ++first) {
    int64_t cost = 0;
    int32_t latest = -1'000, before = PlannedSlots::kNobody;
    bool stays = false;
    for (int32_t slot = first; slot < first + count; ++slot) {
      const int32_t range = slots.occupant(slot);
      if (range == PlannedSlots::kNobody) {
        latest = std::max(latest, since[slot]);
      } else {
        stays |= of_range[range].cost < 0;
        if (range != before) cost += of_range[range].cost;
        latest = std::max(latest, of_range[range].last);
      }
      before = range;
    }
    const std::tuple<int64_t, int32_t> of_window(cost, oldest_first ? latest : 0);
    if (stays || (best >= 0 && of_window >= best_cost)) continue;
    best = first;
    best_cost = of_window;
  }
  return best;
}

TEST(PlannedSlotsTest, FindsTheRunThatAPlainSearchFinds) {
  std::mt19937_64 random(/*seed=*/2);
  for (int trial = 0; trial < 2'000; ++trial) {
    const int32_t num_slots = static_cast<int32_t>(1 + random() % 20);
    const bool oldest_first = random() % 2 == 0;
    PlannedSlots slots(num_slots, oldest_first);
    std::vector<PlannedSlots::Clearing> of_range;
    std::vector<int32_t> since(num_slots, 0);
    for (int32_t slot = 0; slot < num_slots;) {
      const int32_t count =
          std::min<int32_t>(num_slots - slot, static_cast<int32_t>(1 + random() % 3));
      const int32_t range = static_cast<int32_t>(of_range.size());
      of_range.push_back({.cost = static_cast<int64_t>(random() % 4) - (random() % 4 == 0 ? 4 : 0),
                          .last = static_cast<int32_t>(random() % 10)});
      slots.Take(slot, count, range);
      if (random() % 3 == 0) {
        const int32_t time = static_cast<int32_t>(random() % 10);
        slots.Free(slot, count, time);
        std::fill_n(since.begin() + slot, count, time);
      }
      slot += count;
    }
    for (int32_t count = 1; count <= 5; ++count) {
      ASSERT_EQ(slots.FindRun(count, [&](int32_t range) { return of_range[range]; }),
                PlainFindRun(slots, count, of_range, since, oldest_first))
          << "trial " << trial << ", " << count << " slots";
    }
  }
}

}  // namespace
}  // namespace gemini::policies
