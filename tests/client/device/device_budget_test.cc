// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_budget.h"

#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

using Use = DeviceBudget::Use;

TEST(DeviceBudgetTest, AChargePastTheBudgetIsRefusedAndChangesNothing) {
  DeviceBudget budget(100);
  EXPECT_TRUE(budget.TryCharge(Use::kChunks, 60));
  EXPECT_TRUE(budget.TryCharge(Use::kNonModel, 40));
  EXPECT_FALSE(budget.TryCharge(Use::kNonModel, 1));
  EXPECT_FALSE(budget.TryCharge(Use::kChunks, std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(budget.used_bytes(), 100);
  EXPECT_EQ(budget.non_model_bytes(), 40);
  EXPECT_EQ(budget.peak_bytes(), 100);
}

TEST(DeviceBudgetTest, PeaksStayUntilTheyAreReset) {
  DeviceBudget budget(100);
  ASSERT_TRUE(budget.TryCharge(Use::kNonModel, 70));
  budget.Release(Use::kNonModel, 50);
  EXPECT_EQ(budget.peak_bytes(), 70);
  EXPECT_EQ(budget.non_model_peak_bytes(), 70);
  budget.ResetPeaks();
  EXPECT_EQ(budget.peak_bytes(), 20);
  EXPECT_EQ(budget.non_model_peak_bytes(), 20);
}

TEST(DeviceBudgetDeathTest, GivingBackMoreThanWasChargedStops) {
  DeviceBudget budget(100);
  ASSERT_TRUE(budget.TryCharge(Use::kChunks, 10));
  EXPECT_DEATH(budget.Release(Use::kNonModel, 10), "broken invariant");
  EXPECT_DEATH(budget.Release(Use::kChunks, 11), "broken invariant");
}

TEST(DeviceBudgetTest, EachIntervalHasAPeakOfNonModelData) {
  DeviceBudget budget(100);
  ASSERT_TRUE(budget.TryCharge(Use::kNonModel, 30));
  ASSERT_TRUE(budget.TryCharge(Use::kChunks, 50));
  budget.Release(Use::kNonModel, 20);
  EXPECT_EQ(budget.TakePeak(), 30);
  EXPECT_EQ(budget.TakePeak(), 10);  // What is there when an interval begins is part of it.
  ASSERT_TRUE(budget.TryCharge(Use::kNonModel, 5));
  budget.Release(Use::kNonModel, 15);
  EXPECT_EQ(budget.TakePeak(), 15);
  EXPECT_EQ(budget.TakePeak(), 0);
}

TEST(DeviceBudgetTest, ThreadsTogetherNeverPassTheBudget) {
  static constexpr int64_t kBudget = 1000;
  DeviceBudget budget(kBudget);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 20'000; ++i) {
        const int64_t size = static_cast<int64_t>(random() % 600);
        const Use use = random() % 2 == 0 ? Use::kChunks : Use::kNonModel;
        if (!budget.TryCharge(use, size)) continue;
        EXPECT_LE(budget.used_bytes(), kBudget);
        budget.Release(use, size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used_bytes(), 0);
  EXPECT_EQ(budget.non_model_bytes(), 0);
  EXPECT_LE(budget.peak_bytes(), kBudget);
}

}  // namespace
}  // namespace gemini::client
