// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/free_runs.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

// Slot by slot.
int32_t PlainFind(const std::vector<bool>& is_free, int32_t from, int32_t count) {
  int32_t run = 0;
  for (int32_t slot = from; slot < static_cast<int32_t>(is_free.size()); ++slot) {
    run = is_free[slot] ? run + 1 : 0;
    if (run == count) return slot - count + 1;
  }
  return -1;
}

TEST(FreeRunsTest, WithoutSlotsThereIsNoRun) {
  FreeRuns runs(0);
  EXPECT_EQ(runs.Find(0, 1), -1);
}

TEST(FreeRunsTest, FindsTheRunThatAPlainSearchFinds) {
  std::mt19937_64 random(/*seed=*/4);
  for (int trial = 0; trial < 300; ++trial) {
    const auto num_slots = static_cast<int32_t>(1 + random() % 40);
    FreeRuns runs(num_slots);
    std::vector<bool> is_free(num_slots, true);
    for (int change = 0; change < 60; ++change) {
      const auto first = static_cast<int32_t>(random() % num_slots);
      const auto count = static_cast<int32_t>(random() % (num_slots - first + 1));
      const bool free = random() % 2 == 0;
      runs.Set(first, count, free);
      std::fill_n(is_free.begin() + first, count, free);
      for (int32_t length = 1; length <= num_slots + 1; ++length) {
        const auto from = static_cast<int32_t>(random() % (num_slots + 1));
        ASSERT_EQ(runs.Find(from, length), PlainFind(is_free, from, length))
            << "trial " << trial << ", " << length << " slots from " << from << " of " << num_slots;
      }
    }
  }
}

}  // namespace
}  // namespace gemini::policies
