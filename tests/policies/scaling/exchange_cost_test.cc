// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/exchange_cost.h"

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

constexpr RankNetwork kNetwork = {
    .ranks_per_node = 4, .within = {1e-6, 1e11}, .between = {1e-5, 1e10}};
constexpr GroupPlaces kNode = {4, 1, 4}, kNodes = {8, 2, 4};

TEST(ExchangeCostTest, SecondsAreTheCollectivesAndBytesThoseOfARing) {
  ExchangeCost cost = AllGatherCost(800, kNodes, kNetwork);
  EXPECT_DOUBLE_EQ(cost.seconds, AllGatherSeconds(800, kNodes, kNetwork));
  EXPECT_DOUBLE_EQ(cost.bytes, 700);
  EXPECT_DOUBLE_EQ(cost.bytes_between_nodes, 700.0 * 2 / 8);  // One rank of each node sends them.
  EXPECT_DOUBLE_EQ(AllReduceCost(800, kNodes, kNetwork).bytes, 1400);
  EXPECT_DOUBLE_EQ(ReduceScatterCost(800, kNodes, kNetwork).bytes, 700);
  EXPECT_DOUBLE_EQ(ShiftCost(800, kNodes, kNetwork).bytes, 800);
  // To each of the four on the other node.
  EXPECT_DOUBLE_EQ(AllToAllCost(800, kNodes, kNetwork).bytes_between_nodes, 400);
  EXPECT_DOUBLE_EQ(AllGatherCost(800, kNode, kNetwork).bytes_between_nodes, 0);
}

TEST(ExchangeCostTest, OneRankSendsNothingAndNothingCostsNothing) {
  for (const ExchangeCost& cost :
       {AllGatherCost(8, {}, kNetwork), ReduceScatterCost(8, {}, kNetwork),
        AllReduceCost(8, {}, kNetwork), AllToAllCost(8, {}, kNetwork), ShiftCost(8, {}, kNetwork),
        AllGatherCost(0, kNodes, kNetwork), AllToAllCost(0, kNodes, kNetwork)}) {
    EXPECT_EQ(cost.seconds, 0);
    EXPECT_EQ(cost.bytes, 0);
  }
}

TEST(ExchangeCostTest, CostsAddUp) {
  ExchangeCost sum = {1, 2, 3};
  sum += ExchangeCost{10, 20, 30} * 2;
  EXPECT_DOUBLE_EQ(sum.seconds, 21);
  EXPECT_DOUBLE_EQ(sum.bytes, 42);
  EXPECT_DOUBLE_EQ(sum.bytes_between_nodes, 63);
}

}  // namespace
}  // namespace gemini::policies
