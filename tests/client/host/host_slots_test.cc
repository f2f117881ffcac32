// SPDX-License-Identifier: Apache-2.0
#include "client/host/host_slots.h"

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

TEST(HostSlotsTest, ASlotWithoutOwnerIsFreeWithItsLastHold) {
  HostSlots slots(2);
  const SlotId slot = *slots.Take(/*for_update=*/false);
  slots.Hold(slot, /*for_update=*/true);
  EXPECT_EQ(slots.free().num_free(), 1);
  slots.Drop(slot, /*for_update=*/false);
  EXPECT_EQ(slots.free().num_free(), 1);
  slots.Drop(slot, /*for_update=*/true);
  EXPECT_EQ(slots.free().num_free(), 2);
  EXPECT_EQ(slots.Take(false), slot);
  EXPECT_TRUE(slots.Take(false).has_value());
  EXPECT_EQ(slots.Take(false), std::nullopt);
}

TEST(HostSlotsTest, WhatIsHeldIsNotSpilled) {
  HostSlots slots(1);
  const SlotId slot = *slots.Take(false);
  slots.SetOwner(slot, ChunkId(7));
  slots.Drop(slot, false);
  EXPECT_EQ(slots.free().num_free(), 0);
  slots.MaySpill(slot, /*goes_home=*/false);
  EXPECT_EQ(slots.order().First(), slot);
  slots.Hold(slot, false);
  EXPECT_EQ(slots.order().First(), SlotId());
}

TEST(HostSlotsTest, ADisownedSlotIsFreeOnceNobodyHoldsIt) {
  HostSlots slots(2);
  const SlotId held = *slots.Take(false);
  slots.SetOwner(held, ChunkId(1));
  slots.Disown(held);
  EXPECT_EQ(slots.free().num_free(), 1);
  slots.Drop(held, false);
  EXPECT_EQ(slots.free().num_free(), 2);

  const SlotId idle = *slots.Take(false);
  slots.SetOwner(idle, ChunkId(2));
  slots.Drop(idle, false);
  slots.MaySpill(idle, false);
  slots.Disown(idle);
  EXPECT_EQ(slots.free().num_free(), 2);
  EXPECT_EQ(slots.order().First(), SlotId());
}

TEST(HostSlotsTest, ASlotThatAnUpdateHoldsTooCountsOnceForOthers) {
  HostSlots slots(3);
  const SlotId slot = *slots.Take(/*for_update=*/true);
  EXPECT_EQ(slots.of_others(), 0);
  slots.Hold(slot, false);
  slots.Hold(slot, false);
  EXPECT_EQ(slots.of_others(), 1);
  EXPECT_EQ(slots.CountSparesOfOthers(), 1);
  slots.Drop(slot, false);
  EXPECT_EQ(slots.of_others(), 1);
  slots.Drop(slot, false);
  EXPECT_EQ(slots.of_others(), 0);
  EXPECT_EQ(slots.CountSparesOfOthers(), 0);
  EXPECT_EQ(slots.CountHeld(), 1);
}

TEST(HostSlotsTest, HoldsThatEndByThemselvesAreCountedOverAllSlots) {
  HostSlots slots(2);
  const SlotId first = *slots.Take(false);
  const SlotId second = *slots.Take(false);
  slots.AddEndingHold(first, 1);
  slots.AddEndingHold(second, 1);
  slots.AddEndingHold(first, -1);
  EXPECT_EQ(slots.ending_holds(), 1);
  EXPECT_EQ(slots.at(first).ending_holds, 0);
  EXPECT_EQ(slots.at(second).ending_holds, 1);
}

}  // namespace
}  // namespace gemini::client
