// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/simulated_slots.h"

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

// Ranges of one, two and three chunks, of which the first is there.
Plan ThreeRanges() {
  Plan plan;
  plan.ranges = {{0, BundleId(0), 1}, {0, BundleId(1), 2}, {0, BundleId(3), 3}};
  plan.initial = {{0, SlotId(0)}};
  plan.fetches = {{1, SlotId(1)}, {2, SlotId(3)}};
  return plan;
}

TEST(SimulatedSlotsTest, WhatComesHoldsRoomFromTheBeginningOfItsCopyOn) {
  const Plan plan = ThreeRanges();
  SimulatedTime time = {.now_ns = 100};
  SimulatedSlots slots(plan, time);
  slots.Take(1, SlotId(1));
  slots.Take(2, SlotId(3));
  slots.Vacate(0, 400);
  EXPECT_EQ(slots.used(), 5);
  EXPECT_EQ(slots.FitNs(1, 100), 100);
  slots.BeginCopy(1, 150);
  slots.BeginCopy(2, 450);
  EXPECT_EQ(slots.FitNs(1, 149), 149);
  EXPECT_EQ(slots.FitNs(3, 150), 150);
  slots.Vacate(1, 500);
  slots.Vacate(2, 600);
  EXPECT_EQ(slots.FitNs(2, 200), 400);
  EXPECT_EQ(slots.FitNs(1, 410), 600) << "range 2 comes before range 1 has left";
}

TEST(SimulatedSlotsTest, WhatLeavesHoldsRoomUntilItsCopyEnds) {
  const Plan plan = ThreeRanges();
  SimulatedTime time = {.now_ns = 10};
  SimulatedSlots slots(plan, time);
  for (const int32_t range : {1, 2}) {
    slots.Take(range, plan.fetches[range - 1].slot);
    slots.BeginCopy(range, 0);
  }
  slots.Vacate(0, 10);
  slots.Vacate(1, 300);
  slots.Vacate(2, 500);
  EXPECT_EQ(slots.FitNextNs(5), 10);
  EXPECT_EQ(slots.FitNextNs(4), 300);
  EXPECT_EQ(slots.FitNextNs(2), 500);
  EXPECT_EQ(slots.FitNextNs(-1), 500) << "if it never fits, when the last one has left";
  EXPECT_EQ(slots.FitNs(5, 10), 10);
  EXPECT_EQ(slots.FitNs(3, 10), 300);
  time.now_ns = 300;
  EXPECT_EQ(slots.FitNextNs(3), 300);
  EXPECT_EQ(slots.FitNextNs(2), 500);
  time.now_ns = 600;
  EXPECT_EQ(slots.FitNextNs(0), 600);
  EXPECT_EQ(slots.FitNs(0, 600), 600);
}

TEST(SimulatedSlotsTest, WhatBeginsNextFindsAllCopiesThatAreAheadOfIt) {
  const Plan plan = ThreeRanges();
  SimulatedTime time = {.now_ns = 100};
  SimulatedSlots slots(plan, time);
  slots.Take(1, SlotId(1));
  slots.BeginCopy(1, 200);
  slots.Take(2, SlotId(3));
  slots.Vacate(0, 400);
  EXPECT_EQ(slots.FitNextNs(3), 100);
  EXPECT_EQ(slots.FitNextNs(2), 400) << "though nothing but the one that leaves is held yet";
}

}  // namespace
}  // namespace gemini::policies
