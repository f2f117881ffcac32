// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/slot_assignment.h"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Every slot has one stay at a time, around the circle.
void ExpectNobodyShares(int32_t num_positions, int32_t num_slots, const std::vector<Stay>& stays) {
  for (int32_t p = 0; p < num_positions; ++p) {
    std::set<int32_t> taken;
    for (const Stay& stay : stays) {
      const bool there = stay.needed == kAlways || (stay.needed <= p && p <= stay.last) ||
                         p + num_positions <= stay.last;
      if (!there) continue;
      EXPECT_TRUE(stay.slot >= 0 && stay.slot < num_slots);
      EXPECT_TRUE(taken.insert(stay.slot).second) << "position " << p << ", slot " << stay.slot;
    }
  }
}

Stay Of(int32_t range, int32_t needed, int32_t last) {
  return {.range = range, .slot = -1, .needed = needed, .last = last};
}

TEST(SlotAssignmentTest, AStayIntoTheNextRoundKeepsItsSlotFree) {
  // Range 0 goes from position 4 into 0 of the next round; 1 and 2 have to share the other slot.
  std::vector<Stay> stays = {Of(1, 1, 2), Of(0, 4, 5), Of(2, 3, 4), Of(3, 1, 3)};
  ASSERT_THAT(AssignSlots(5, 2, stays), IsEmpty());
  ExpectNobodyShares(5, 2, stays);
  EXPECT_EQ(stays[3].slot, stays[1].slot);
}

TEST(SlotAssignmentTest, OneThatFindsNoPlaceIsNamed) {
  // Never more than two at a time. 0 leaves its slot after position 0 and is back at 3; 1 has the
  // other until 2, and 2 has 0's from 1 until 3.
  std::vector<Stay> stays = {Of(0, 3, 4), Of(1, 0, 2), Of(2, 1, 3)};
  EXPECT_THAT(AssignSlots(4, 2, stays), ElementsAre(0));
}

TEST(SlotAssignmentTest, WithoutStaysIntoTheNextRoundAsManySlotsAsStaysDo) {
  std::mt19937_64 random(/*seed=*/4);
  for (int trial = 0; trial < 500; ++trial) {
    const int32_t n = 30, num_slots = static_cast<int32_t>(1 + random() % 6);
    std::vector<Stay> stays;
    std::vector<int32_t> there(n, 0);
    for (int i = 0; i < 100; ++i) {
      const int32_t needed = static_cast<int32_t>(random() % n);
      const int32_t last = std::min(n - 1, needed + static_cast<int32_t>(random() % 8));
      bool fits = true;
      for (int32_t p = needed; p <= last; ++p) fits &= there[p] < num_slots;
      if (!fits) continue;
      for (int32_t p = needed; p <= last; ++p) ++there[p];
      stays.push_back(Of(i, needed, last));
    }
    ASSERT_THAT(AssignSlots(n, num_slots, stays), IsEmpty()) << trial;
    ExpectNobodyShares(n, num_slots, stays);
  }
}

}  // namespace
}  // namespace gemini::policies
