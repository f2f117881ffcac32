// SPDX-License-Identifier: Apache-2.0
#include "server/leases/budget_shares.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<BudgetShare> Shares() {
  return {{.session = 1, .granted_bytes = 10, .floor_bytes = 8, .want_bytes = 10},
          {.session = 2, .granted_bytes = 10, .floor_bytes = 2, .want_bytes = 30},
          {.session = 3, .granted_bytes = 5, .floor_bytes = 1, .want_bytes = 15}};
}

TEST(BudgetSharesTest, TheOneWithTheMostSlackGivesWayFirstAndNoMoreThanIsNeeded) {
  EXPECT_THAT(GiveWay(Shares(), 3), ElementsAre(NewShare{2, 7}));
  EXPECT_THAT(GiveWay(Shares(), 9), ElementsAre(NewShare{2, 2}, NewShare{3, 4}));
  EXPECT_THAT(GiveWay(Shares(), 14), ElementsAre(NewShare{2, 2}, NewShare{3, 1}, NewShare{1, 8}));
  EXPECT_THAT(GiveWay(Shares(), 15), IsEmpty());  // Nobody is robbed for what would not do.
  EXPECT_THAT(GiveWay({}, 1), IsEmpty());
}

TEST(BudgetSharesTest, WhoHasMoreThanAFairPartGivesWayBeforeOthers) {
  // Above 7, or above their floors: 2, 3 and none.
  EXPECT_THAT(GiveWayFairly(Shares(), 3, 7), ElementsAre(NewShare{2, 7}));
  EXPECT_THAT(GiveWayFairly(Shares(), 4, 7), ElementsAre(NewShare{2, 7}, NewShare{1, 9}));
  // Then of the rest: the second has 5 and the third 4.
  EXPECT_THAT(GiveWayFairly(Shares(), 8, 7), ElementsAre(NewShare{1, 8}, NewShare{2, 4}));
  EXPECT_THAT(GiveWayFairly(Shares(), 14, 7),
              ElementsAre(NewShare{1, 8}, NewShare{2, 2}, NewShare{3, 1}));
  EXPECT_THAT(GiveWayFairly(Shares(), 15, 7), IsEmpty());
  // Nobody has more than that: as without.
  EXPECT_THAT(GiveWayFairly(Shares(), 3, 100), ElementsAre(NewShare{2, 7}));
}

TEST(BudgetSharesTest, FloorsArePromisedBeforeTargetsAndTheFirstComesFirst) {
  const std::vector<Newcomer> newcomers = {{.floor_bytes = 2, .target_bytes = 9},
                                           {.floor_bytes = 3, .target_bytes = 3},
                                           {.floor_bytes = 0, .target_bytes = 4}};
  EXPECT_THAT(Promises(newcomers, 100), ElementsAre(9, 3, 4));
  EXPECT_THAT(Promises(newcomers, 14), ElementsAre(9, 3, 2));
  EXPECT_THAT(Promises(newcomers, 6), ElementsAre(3, 3, 0));
  EXPECT_THAT(Promises(newcomers, 5), ElementsAre(2, 3, 0));
  EXPECT_THAT(Promises(newcomers, 4), IsEmpty());
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Promises({{1, kMost}, {kMost, kMost}}, 100), IsEmpty());
  EXPECT_THAT(Promises({{1, kMost}, {0, kMost}}, 100), ElementsAre(100, 0));
}

TEST(BudgetSharesTest, TheOneThatLacksMostGrowsFirstAndNobodyBeyondWhatItWants) {
  EXPECT_THAT(ShareOut(Shares(), 5), ElementsAre(NewShare{2, 15}));
  EXPECT_THAT(ShareOut(Shares(), 25), ElementsAre(NewShare{2, 30}, NewShare{3, 10}));
  EXPECT_THAT(ShareOut(Shares(), 1000), ElementsAre(NewShare{2, 30}, NewShare{3, 15}));
  EXPECT_THAT(ShareOut(Shares(), 0), IsEmpty());
}

// Property: floors, wants and sums hold whatever the shares are.
TEST(BudgetSharesTest, FloorsAndWantsHoldForAnyShares) {
  std::mt19937_64 random(/*seed=*/31);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<BudgetShare> shares;
    std::map<uint64_t, BudgetShare> by_session;
    int64_t slack = 0, lack = 0;
    for (uint64_t id = 1; id <= random() % 6; ++id) {
      BudgetShare share = {.session = id};
      share.floor_bytes = static_cast<int64_t>(random() % 10);
      share.granted_bytes = share.floor_bytes + static_cast<int64_t>(random() % 10);
      share.want_bytes = share.granted_bytes + static_cast<int64_t>(random() % 10);
      slack += share.granted_bytes - share.floor_bytes;
      lack += share.want_bytes - share.granted_bytes;
      shares.push_back(share);
      by_session[id] = share;
    }
    std::shuffle(shares.begin(), shares.end(), random);
    const int64_t amount = 1 + static_cast<int64_t>(random() % 30);
    int64_t freed = 0;
    for (const NewShare& share : GiveWay(shares, amount)) {
      ASSERT_GE(share.granted_bytes, by_session[share.session].floor_bytes);
      ASSERT_LT(share.granted_bytes, by_session[share.session].granted_bytes);
      freed += by_session[share.session].granted_bytes - share.granted_bytes;
    }
    ASSERT_EQ(freed, amount <= slack ? amount : 0);
    const int64_t fair = static_cast<int64_t>(random() % 10);
    int64_t excess = 0, freed_fairly = 0;
    for (const BudgetShare& share : shares) {
      excess += share.granted_bytes - std::clamp(fair, share.floor_bytes, share.granted_bytes);
    }
    for (const NewShare& share : GiveWayFairly(shares, amount, fair)) {
      const BudgetShare& before = by_session[share.session];
      ASSERT_GE(share.granted_bytes, before.floor_bytes);
      ASSERT_LT(share.granted_bytes, before.granted_bytes);
      if (amount <= excess) {
        ASSERT_GE(share.granted_bytes, fair);
      }
      freed_fairly += before.granted_bytes - share.granted_bytes;
    }
    ASSERT_EQ(freed_fairly, freed);
    int64_t taken = 0;
    for (const NewShare& share : ShareOut(shares, amount)) {
      ASSERT_LE(share.granted_bytes, by_session[share.session].want_bytes);
      ASSERT_GT(share.granted_bytes, by_session[share.session].granted_bytes);
      taken += share.granted_bytes - by_session[share.session].granted_bytes;
    }
    ASSERT_EQ(taken, std::min(amount, lack));
  }
}

}  // namespace
}  // namespace gemini::server
