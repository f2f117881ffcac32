// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/planned_slots.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

TEST(PlannedSlotsTest, ASingleChunkTakesTheSlotThatIsFreeForLongest) {
  PlannedSlots slots(3, /*oldest_first=*/true, /*has_runs=*/false);
  for (int32_t range = 0; range < 3; ++range) slots.TakeSingle(range);
  slots.Free(1, 1, /*since=*/5);
  slots.Free(2, 1, /*since=*/3);
  EXPECT_EQ(slots.TakeSingle(7), 2);
  EXPECT_EQ(slots.TakeSingle(8), 1);
  EXPECT_EQ(slots.occupant(2), 7);
  EXPECT_EQ(slots.num_used(), 3);
}

TEST(PlannedSlotsTest, OtherwiseTheTopmostAndRunsTheLowest) {
  PlannedSlots slots(6, /*oldest_first=*/false, /*has_runs=*/true);
  EXPECT_EQ(slots.TakeSingle(0), 5);
  EXPECT_EQ(slots.FindFree(2), 0);
  slots.Take(0, 2, 1);
  slots.Free(5, 1, 9);
  EXPECT_EQ(slots.TakeSingle(2), 5);
}

TEST(PlannedSlotsTest, AReservedSlotIsTakenLast) {
  PlannedSlots slots(3, /*oldest_first=*/true, /*has_runs=*/false);
  slots.Reserve(2);
  slots.Reserve(0);
  EXPECT_EQ(slots.TakeSingle(0), 1);
  EXPECT_EQ(slots.TakeSingle(1), 2);
  EXPECT_EQ(slots.TakeSingle(2), 0);
}

TEST(PlannedSlotsTest, RunsGoAroundTheSlotsInACircle) {
  PlannedSlots slots(6, /*oldest_first=*/true, /*has_runs=*/true);
  for (const int32_t first : {0, 2, 4}) {
    ASSERT_EQ(slots.FindFree(2), first);
    slots.Take(first, 2, first);
  }
  EXPECT_EQ(slots.FindFree(2), -1);
  slots.Free(0, 2, /*since=*/1);
  slots.Free(4, 2, /*since=*/2);
  EXPECT_EQ(slots.FindFree(2), 0);  // What was left last is taken last.
  EXPECT_EQ(slots.FindFree(2), 4);
  EXPECT_EQ(slots.FindFree(3), -1);  // Two and two are not adjacent.
}

TEST(PlannedSlotsTest, EachSlotKnowsWhereWhatIsThereBeginsAndEnds) {
  PlannedSlots slots(5, /*oldest_first=*/false, /*has_runs=*/true);
  slots.Take(1, 3, /*range=*/7);
  for (const int32_t slot : {1, 2, 3}) {
    EXPECT_EQ(slots.occupant(slot), 7);
    EXPECT_EQ(slots.BeginAt(slot), 1);
    EXPECT_EQ(slots.EndAt(slot), 4);
  }
  EXPECT_EQ(slots.BeginAt(4), 4);
  EXPECT_EQ(slots.EndAt(4), 5);
  EXPECT_EQ(slots.num_used(), 3);
}

}  // namespace
}  // namespace gemini::policies
