// SPDX-License-Identifier: Apache-2.0
#include "server/leases/budgets.h"

#include <random>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::HasSubstr;

class BudgetsTest : public ::testing::Test {
 protected:
  OwnerThread owner_;
  Budgets budgets_{owner_, {{100, 200, 300}}};
};

TEST_F(BudgetsTest, ARefusedLeaseTakesNothingInAnyTier) {
  EXPECT_THAT(
      budgets_.Lease({{10, 201, 10}}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("needs 201 B of HOST, 200 B free")));
  EXPECT_EQ(budgets_.tier(Tier::kDevice).free_bytes(), 100);
  EXPECT_OK(budgets_.Lease({{100, 200, 300}}));
}

TEST_F(BudgetsTest, ReclaimingBytesAreNotFree) {
  ASSERT_OK(budgets_.Lease({{0, 150, 0}}));
  budgets_.BeginReclaim({{0, 150, 0}});
  EXPECT_EQ(budgets_.tier(Tier::kHost).reclaiming_bytes, 150);
  EXPECT_THAT(budgets_.Lease({{0, 51, 0}}), StatusIs(absl::StatusCode::kResourceExhausted));
  budgets_.FinishReclaim({{0, 150, 0}});
  EXPECT_OK(budgets_.Lease({{0, 200, 0}}));
}

// Property: after any sequence, each tier's numbers are those of a list of leases, and sum up.
TEST_F(BudgetsTest, SumOfBudgets) {
  std::mt19937_64 random(/*seed=*/11);
  std::vector<TierMap<int64_t>> leased;
  std::vector<TierMap<int64_t>> reclaiming;
  int refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 3) {
      case 0: {
        const TierMap<int64_t> wish = {{static_cast<int64_t>(random() % 40),
                                        static_cast<int64_t>(random() % 80),
                                        static_cast<int64_t>(random() % 120)}};
        if (budgets_.Lease(wish).ok()) {
          leased.push_back(wish);
        } else {
          ++refused;
        }
        break;
      }
      case 1:
        if (leased.empty()) break;
        budgets_.BeginReclaim(leased.back());
        reclaiming.push_back(leased.back());
        leased.pop_back();
        break;
      case 2:
        if (reclaiming.empty()) break;
        std::swap(reclaiming[random() % reclaiming.size()], reclaiming.back());
        budgets_.FinishReclaim(reclaiming.back());
        reclaiming.pop_back();
        break;
    }
    for (Tier tier : kAllTiers) {
      const TierBudget budget = budgets_.tier(tier);
      int64_t sum_leased = 0;
      int64_t sum_reclaiming = 0;
      for (const auto& lease : leased) sum_leased += lease[tier];
      for (const auto& lease : reclaiming) sum_reclaiming += lease[tier];
      ASSERT_EQ(budget.leased_bytes, sum_leased) << "step " << step;
      ASSERT_EQ(budget.reclaiming_bytes, sum_reclaiming) << "step " << step;
      ASSERT_EQ(budget.free_bytes(), budget.capacity_bytes - sum_leased - sum_reclaiming);
      ASSERT_GE(budget.free_bytes(), 0);
    }
  }
  EXPECT_GT(refused, 100);  // The sequence did reach the limits.
}

}  // namespace
}  // namespace gemini::server
