// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/lease_shm.h"

#include <thread>

#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(LeaseShmTest, TheLatestTargetIsRead) {
  LeaseSegmentShm segment = {};
  EXPECT_EQ(ReadBudgetTarget(segment), (BudgetTarget{0, 0}));
  EXPECT_EQ(PostBudgetTarget(segment, 5000), 1u);
  EXPECT_EQ(PostBudgetTarget(segment, 7000), 2u);
  EXPECT_EQ(ReadBudgetTarget(segment), (BudgetTarget{2, 7000}));
}

// Property: a target is never read with another epoch than its own, however often it changes.
TEST(LeaseShmTest, ATargetIsThatOfItsEpochWhileOthersArePosted) {
  LeaseSegmentShm segment = {};
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t epoch = 1; !stop; ++epoch) PostBudgetTarget(segment, 3 * epoch);
  });
  uint64_t last = 0;
  // At least one after the writer has begun.
  for (int i = 0; i < 300'000 || last == 0; ++i) {
    const BudgetTarget target = ReadBudgetTarget(segment);
    ASSERT_EQ(target.device_bytes, 3 * static_cast<int64_t>(target.epoch));
    ASSERT_GE(target.epoch, last);
    last = target.epoch;
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace gemini
