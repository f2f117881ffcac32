// SPDX-License-Identifier: Apache-2.0
#include "client/host/slot_pool.h"

#include <set>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

TEST(SlotPoolTest, GivesEverySlotOnceAndThenNone) {
  SlotPool pool(5);
  std::set<SlotId> taken;
  for (int i = 0; i < 5; ++i) taken.insert(*pool.Take());
  EXPECT_EQ(taken.size(), 5);
  EXPECT_EQ(pool.num_used(), 5);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.Give(SlotId(3));
  EXPECT_EQ(pool.num_used(), 4);
  EXPECT_EQ(pool.Take(), SlotId(3));
}

TEST(SlotPoolTest, ASlotGivenToTakeLastComesAfterAllOthers) {
  SlotPool pool(3);
  pool.GiveToTakeLast(*pool.Take());
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.Take(), SlotId(1));
  EXPECT_EQ(pool.Take(), SlotId(2));
  pool.Give(SlotId(1));
  EXPECT_EQ(pool.Take(), SlotId(1));
  EXPECT_EQ(pool.Take(), SlotId(0));
  EXPECT_EQ(pool.Take(), std::nullopt);
}

TEST(SlotPoolDeathTest, GivingAFreeOrUnknownSlotStops) {
  SlotPool pool(2);
  EXPECT_DEATH(pool.Give(SlotId(0)), "broken invariant");
  EXPECT_DEATH(pool.Give(SlotId(2)), "broken invariant");
}

}  // namespace
}  // namespace gemini::client
