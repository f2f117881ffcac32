// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/loss_values.h"

#include <cmath>
#include <optional>
#include <type_traits>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(LossSumTest, EachLabelWeighsAlikeAndRoutersByRows) {
  LossSum sum, of_rank;
  sum.Add({.total = 2.5, .of_labels = 2, .router = 5, .labels = 1}, /*rows=*/2);
  of_rank.Add({.total = 8.25, .of_labels = 8, .router = 2, .labels = 5}, /*rows=*/6);
  sum.Add(of_rank);
  sum.Add(LossSum());
  const LossValues mean = sum.Mean();
  EXPECT_EQ(mean.labels, 6);
  EXPECT_DOUBLE_EQ(mean.of_labels, (1 * 2.0 + 5 * 8.0) / 6);
  EXPECT_DOUBLE_EQ(*mean.router, (2 * 5.0 + 6 * 2.0) / 8);
  EXPECT_DOUBLE_EQ(mean.total, mean.of_labels + (2 * 0.5 + 6 * 0.25) / 8);
}

TEST(LossSumTest, WithoutARouterTheTotalIsTheLossOfTheLabels) {
  LossSum sum;
  EXPECT_TRUE(std::isnan(sum.Mean().total));
  sum.Add({.total = 3, .of_labels = 3, .labels = 3}, /*rows=*/1);
  sum.Add({.total = 6, .of_labels = 6, .labels = 1}, /*rows=*/1);
  EXPECT_EQ(sum.Mean().total, 3.75);
  EXPECT_EQ(sum.Mean().router, std::nullopt);
}

TEST(LossSumTest, HitsAreAddedUp) {
  LossSum sum, of_rank;
  EXPECT_FALSE(sum.Mean().hits.has_value());
  sum.Add({.labels = 4, .hits = Hits{.first = 1, .among_five = 3, .has_five = true}}, /*rows=*/4);
  of_rank.Add({.labels = 3, .hits = Hits{.first = 2, .among_five = 2, .has_five = true}}, 3);
  sum.Add(of_rank);
  sum.Add(LossSum());  // A rank without rows has no hits, and takes none away.
  ASSERT_TRUE(sum.Mean().hits.has_value());
  EXPECT_EQ(sum.Mean().hits->first, 3);
  EXPECT_EQ(sum.Mean().hits->among_five, 5);
  EXPECT_TRUE(sum.Mean().hits->has_five);

  LossSum empty;
  empty.Add(of_rank);
  EXPECT_EQ(empty.Mean().hits->among_five, 2);
  EXPECT_TRUE(empty.Mean().hits->has_five);
}

TEST(LossSumTest, HitsOfFewClassesAreNotAmongFive) {
  LossSum sum;
  sum.Add({.labels = 4, .hits = Hits{.first = 1}}, /*rows=*/4);
  sum.Add({.labels = 4, .hits = Hits{.first = 4}}, /*rows=*/4);
  EXPECT_EQ(sum.Mean().hits->first, 5);
  EXPECT_EQ(sum.Mean().hits->among_five, 0);
  EXPECT_FALSE(sum.Mean().hits->has_five);
}

// Ranks send each other the bytes.
static_assert(std::is_trivially_copyable_v<LossSum>);

}  // namespace
}  // namespace gemini::trainer
