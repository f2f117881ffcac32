// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/loss_scale.h"

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(LossScaleTest, HalvesAtAnOverflowAndDoublesAfterManyStepsWithoutOne) {
  LossScale scale;
  EXPECT_TRUE(scale.After(/*overflowed=*/true));
  EXPECT_EQ(scale.value, LossScale::kFirst / 2);
  for (int64_t i = 0; i + 1 < LossScale::kGrowthSteps; ++i) EXPECT_TRUE(scale.After(false));
  EXPECT_EQ(scale.value, LossScale::kFirst / 2);
  EXPECT_TRUE(scale.After(false));
  EXPECT_EQ(scale.value, LossScale::kFirst);
  EXPECT_EQ(scale.steps_since, 0);
}

TEST(LossScaleTest, AnOverflowBeginsTheCountAnew) {
  LossScale scale;
  for (int64_t i = 0; i + 1 < LossScale::kGrowthSteps; ++i) scale.After(false);
  scale.After(true);
  scale.After(false);
  EXPECT_EQ(scale.value, LossScale::kFirst / 2);
}

TEST(LossScaleTest, StaysBetweenOneAndItsLargest) {
  LossScale scale = {.value = LossScale::kLargest};
  for (int64_t i = 0; i < LossScale::kGrowthSteps; ++i) scale.After(false);
  EXPECT_EQ(scale.value, LossScale::kLargest);
  scale = {.value = 2};
  EXPECT_TRUE(scale.After(true));
  EXPECT_FALSE(scale.After(true));
  EXPECT_EQ(scale.value, 1);
}

}  // namespace
}  // namespace gemini::trainer
