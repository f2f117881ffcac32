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
  SimulatedSlots slots(plan);
  slots.Take(1, SlotId(1), 0);
  slots.Take(2, SlotId(3), 0);
  slots.Vacate(0, 400, 0);
  EXPECT_EQ(slots.used(), 5);
  EXPECT_EQ(slots.FitNs(1, 100), 100);
  EXPECT_EQ(slots.FitNs(0, 100), 400);
  slots.BeginCopy(1, 150);
  slots.BeginCopy(2, 450);
  EXPECT_EQ(slots.FitNs(1, 149), 149);
  EXPECT_EQ(slots.FitNs(1, 150), 400) << "if it never fits, when the last one has left";
  slots.Vacate(1, 500, 0);
  slots.Vacate(2, 600, 0);
  EXPECT_EQ(slots.FitNs(2, 200), 400);
  EXPECT_EQ(slots.FitNs(0, 200), 600) << "range 2 comes before range 1 has left";
}

TEST(SimulatedSlotsTest, WhatLeavesHoldsRoomUntilItsCopyEnds) {
  const Plan plan = ThreeRanges();
  SimulatedSlots slots(plan);
  slots.Take(1, SlotId(1), 0);
  slots.BeginCopy(1, 0);
  slots.Take(2, SlotId(3), 0);
  slots.BeginCopy(2, 0);
  slots.Vacate(2, 500, 0);
  slots.Vacate(1, 300, 0);
  slots.Vacate(0, 100, 0);
  EXPECT_EQ(slots.FitNs(6, 10), 10);
  EXPECT_EQ(slots.FitNs(5, 10), 100);
  EXPECT_EQ(slots.FitNs(4, 10), 300);
  EXPECT_EQ(slots.FitNs(2, 10), 500);
  EXPECT_EQ(slots.FitNextNs(2, 10), 500);
  EXPECT_EQ(slots.FitNextNs(3, 300), 300);
  EXPECT_EQ(slots.FitNs(0, 500), 500);
}

TEST(SimulatedSlotsTest, WhatBeginsNextFindsAllCopiesThatAreAheadOfIt) {
  const Plan plan = ThreeRanges();
  SimulatedSlots slots(plan);
  slots.Take(1, SlotId(1), 0);
  slots.BeginCopy(1, 200);
  slots.Take(2, SlotId(3), 0);
  slots.Vacate(0, 400, 0);
  EXPECT_EQ(slots.FitNextNs(3, 100), 100);
  EXPECT_EQ(slots.FitNextNs(2, 100), 400) << "though nothing but the one that leaves is held yet";
}

}  // namespace
}  // namespace gemini::policies
