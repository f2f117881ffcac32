// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/sequence_order.h"

#include <cstdlib>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using Kind = SequenceOrder::Kind;

std::vector<int64_t> Epoch(const SequenceOrder& order, int64_t n, int64_t epoch) {
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < n; ++i) taken.push_back(order.At(epoch * n + i));
  return taken;
}

TEST(SequenceOrder, SequentialWrapsAtTheEndOfTheData) {
  const SequenceOrder order(Kind::kSequential, 3, 0);
  EXPECT_EQ(Epoch(order, 7, 0), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(SequenceOrder, EachShuffledEpochTakesEverySequenceOnce) {
  for (int64_t n : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    const SequenceOrder order(Kind::kShuffled, n, 42);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const std::vector<int64_t> taken = Epoch(order, n, epoch);
      const std::set<int64_t> distinct(taken.begin(), taken.end());
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), n) << "n " << n << " epoch " << epoch;
      EXPECT_EQ(*distinct.begin(), 0);
      EXPECT_EQ(*distinct.rbegin(), n - 1);
    }
  }
}

TEST(SequenceOrder, EpochsAndSeedsHaveDifferentOrders) {
  const SequenceOrder order(Kind::kShuffled, 1000, 42);
  EXPECT_NE(Epoch(order, 1000, 0), Epoch(order, 1000, 1));
  EXPECT_NE(Epoch(order, 1000, 0), Epoch(SequenceOrder(Kind::kShuffled, 1000, 43), 1000, 0));
  EXPECT_EQ(Epoch(order, 1000, 5), Epoch(SequenceOrder(Kind::kShuffled, 1000, 42), 1000, 5));
}

// Over many epochs each sequence comes equally often at each place of a small epoch. The bound is
// six standard deviations of a binomial (24,000 draws, p = 1/6: sigma 57.7).
TEST(SequenceOrder, EveryPlaceOfAnEpochIsEquallyLikely) {
  constexpr int64_t kN = 6;
  constexpr int64_t kEpochs = 24'000;
  const SequenceOrder order(Kind::kShuffled, kN, 7);
  std::vector<int64_t> counts(kN * kN);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t i = 0; i < kN; ++i) ++counts[i * kN + order.At(epoch * kN + i)];
  }
  for (int64_t count : counts) EXPECT_LT(std::abs(count - kEpochs / kN), 346);
}

TEST(SequenceOrder, LargeDataStaysInRange) {
  const int64_t n = (int64_t{1} << 40) + 12345;
  const SequenceOrder order(Kind::kShuffled, n, 1);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(order.At(i), 0);
    EXPECT_LT(order.At(i), n);
  }
}

}  // namespace
}  // namespace gemini::trainer
