// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/slot_dealing.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::server {
namespace {

TierGrant GrantOf(const std::vector<int64_t>& sizes) {
  TierGrant grant;
  for (const int64_t size : sizes) grant.extents.push_back({UniqueFd(), size, 0});
  return grant;
}

TEST(SlotDealingTest, EqualExtentsHaveTheirTurns) {
  EXPECT_EQ(DealSlots(GrantOf({2, 2, 2})),
            (std::vector<SlotPlace>{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}}));
}

TEST(SlotDealingTest, EachExtentHasItsPartOfAnyFirstSlots) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{300, 100}, {1, 999}, {64, 64, 64, 64}, {1}}) {
    const std::vector<SlotPlace> places = DealSlots(GrantOf(sizes));
    int64_t sum = 0;
    for (const int64_t size : sizes) sum += size;
    ASSERT_EQ(static_cast<int64_t>(places.size()), sum);
    std::vector<int64_t> dealt(sizes.size());
    for (int64_t first = 0; first < sum; ++first) {
      // The slots of an extent in their order, each once.
      ASSERT_EQ(places[first].slot, dealt[places[first].extent]++);
      for (size_t i = 0; i < sizes.size(); ++i) {
        const double part = static_cast<double>((first + 1) * sizes[i]) / static_cast<double>(sum);
        ASSERT_LT(std::abs(static_cast<double>(dealt[i]) - part), 1.0) << i << " at " << first;
      }
    }
  }
}

TEST(SlotDealingTest, AGrantWithoutSlotsHasNone) { EXPECT_TRUE(DealSlots(GrantOf({})).empty()); }

}  // namespace
}  // namespace gemini::server
