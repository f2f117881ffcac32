// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/rank_threads.h"

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(RankThreadsTest, RanksOfAMachineShareItsProcessors) {
  EXPECT_EQ(ThreadsOfRank(16, 16, 4), 4);
  EXPECT_EQ(ThreadsOfRank(16, 2, 4), 2);  // The launcher has bound it to two.
  EXPECT_EQ(ThreadsOfRank(2, 2, 8), 1);
}

}  // namespace
}  // namespace gemini::trainer
