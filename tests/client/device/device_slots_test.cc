// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_slots.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

TEST(DeviceSlotsTest, SinglesComeFromTheTopAndRunsFromTheBottom) {
  DeviceSlots slots(8);
  EXPECT_EQ(slots.FindFree(1), SlotId(7));
  EXPECT_EQ(slots.FindFree(3), SlotId(0));
  slots.Take(SlotId(1), 1, 4);
  EXPECT_EQ(slots.FindFree(3), SlotId(2));
  EXPECT_EQ(slots.FindFree(7), std::nullopt);
  EXPECT_EQ(slots.num_used(), 1);
}

TEST(DeviceSlotsTest, NothingIsFoundBehindTheUsableOnes) {
  DeviceSlots slots(8);
  slots.Take(SlotId(5), 2, 3);
  slots.SetUsable(6);
  EXPECT_EQ(slots.FindFree(1), SlotId(4));
  EXPECT_EQ(slots.FindFree(5), SlotId(0));
  EXPECT_EQ(slots.FindFree(6), std::nullopt);
  EXPECT_EQ(slots.FindOldest(6, [](int64_t) { return 1; }), SlotId(0));
  EXPECT_EQ(slots.FindOldest(7, [](int64_t) { return 1; }), std::nullopt);
  slots.Free(SlotId(5), 2);  // What was behind may still go.
  slots.SetUsable(8);
  EXPECT_EQ(slots.FindFree(1), SlotId(7));
  EXPECT_TRUE(slots.IsFree(SlotId(4), 4));
  slots.Take(SlotId(6), 1, 3);
  EXPECT_FALSE(slots.IsFree(SlotId(4), 4));
  EXPECT_TRUE(slots.IsFree(SlotId(4), 2));
}

TEST(DeviceSlotsTest, TheOldestWindowAvoidsWhoMustStay) {
  DeviceSlots slots(6);
  for (int64_t i = 0; i < 6; ++i) slots.Take(SlotId(i), 1, i);
  const std::vector<int64_t> last_use = {5, 9, -1, 4, 8, 7};
  const auto use = [&](int64_t occupant) { return last_use[occupant]; };
  EXPECT_EQ(slots.FindOldest(1, use), SlotId(3));
  EXPECT_EQ(slots.FindOldest(2, use), SlotId(3));
  EXPECT_EQ(slots.FindOldest(3, use), SlotId(3));
  EXPECT_EQ(slots.FindOldest(4, use), std::nullopt);
}

// Property: FindOldest equals the obvious search of all windows.
TEST(DeviceSlotsTest, FindOldestEqualsTheObviousSearch) {
  std::mt19937_64 random(/*seed=*/3);
  for (int round = 0; round < 2000; ++round) {
    const int64_t size = 1 + static_cast<int64_t>(random() % 10);
    DeviceSlots slots(size);
    std::vector<int64_t> last_use;
    for (int64_t i = 0; i < size; ++i) {
      last_use.push_back(static_cast<int64_t>(random() % 12) - 2);
      if (random() % 3 != 0) slots.Take(SlotId(i), 1, i);
    }
    const int64_t count = 1 + static_cast<int64_t>(random() % 4);
    const auto newest = [&](int64_t first) {
      int64_t most = 0;
      for (int64_t i = first; i < first + count; ++i) {
        if (slots.occupant(SlotId(i)) == DeviceSlots::kNobody) continue;
        if (last_use[i] < 0) return int64_t{-1};
        most = std::max(most, last_use[i]);
      }
      return most;
    };
    int64_t best = -1;
    for (int64_t first = 0; first + count <= size; ++first) {
      const int64_t use = newest(first);
      if (use >= 0 && (best < 0 || use < best)) best = use;
    }
    const auto found =
        slots.FindOldest(count, [&](int64_t occupant) { return last_use[occupant]; });
    ASSERT_EQ(found.has_value(), best >= 0) << "round " << round;
    if (found) {
      ASSERT_EQ(newest(found->value()), best) << "round " << round;
    }
  }
}

TEST(DeviceSlotsDeathTest, TakingATakenSlotStops) {
  DeviceSlots slots(3);
  slots.Take(SlotId(1), 2, 0);
  EXPECT_DEATH(slots.Take(SlotId(0), 2, 1), "broken invariant");
  EXPECT_DEATH(slots.Free(SlotId(0), 1), "broken invariant");
}

}  // namespace
}  // namespace gemini::client
