// SPDX-License-Identifier: Apache-2.0
#include "client/device/stall_times.h"

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/client/device/late_clock.h"

namespace gemini::client {
namespace {

class StallTimesTest : public ::testing::Test {
 protected:
  int64_t shown_ns(StallCause cause) const {
    return static_cast<int64_t>(header_->stall_by_cause_ns[static_cast<size_t>(cause)].load());
  }

  const std::unique_ptr<ClientSegmentHeaderShm> header_ =
      std::make_unique<ClientSegmentHeaderShm>();
  SpaceCounters counters_{header_.get()};
};

TEST_F(StallTimesTest, WhereOperatorsAreOverWhenTheyReturnAWaitCountsAtOnce) {
  CopyEngineHost host;
  StallTimes stalls(host);
  OperatorPoint since = stalls.Now();
  since.asked_ns -= 5'000'000;
  stalls.Add(counters_, StallCause::kNvme, std::move(since));
  EXPECT_GE(stalls.of(StallCause::kNvme), 5'000'000);
  EXPECT_EQ(stalls.total_ns(), stalls.of(StallCause::kNvme));
  EXPECT_EQ(shown_ns(StallCause::kNvme), stalls.total_ns());
}

TEST_F(StallTimesTest, ElsewhereItCountsWhenItIsMeasured) {
  LateClock clock;
  StallTimes stalls(clock);
  stalls.Add(counters_, StallCause::kTransfer, stalls.Now());
  stalls.Add(counters_, StallCause::kRoom, stalls.Now());
  EXPECT_EQ(stalls.num_added(), 2u);
  stalls.Settle();
  EXPECT_EQ(stalls.total_ns(), 0);
  clock.Reach({100, 130, 150});
  stalls.Settle();
  EXPECT_EQ(stalls.of(StallCause::kTransfer), 30);
  EXPECT_EQ(stalls.of(StallCause::kRoom), 0);  // Begun, not over.
  clock.Reach({157});
  stalls.Settle();
  EXPECT_EQ(stalls.of(StallCause::kRoom), 7);
  EXPECT_EQ(stalls.total_ns(), 37);
  EXPECT_EQ(shown_ns(StallCause::kRoom), 7);
}

TEST_F(StallTimesTest, SettlesNoMoreThanItIsAskedTo) {
  LateClock clock;
  StallTimes stalls(clock);
  stalls.Add(counters_, StallCause::kTransfer, stalls.Now());
  const uint64_t first = stalls.num_added();
  stalls.Add(counters_, StallCause::kTransfer, stalls.Now());
  clock.Reach({10, 11, 20, 22});
  stalls.Settle(first);
  EXPECT_EQ(stalls.total_ns(), 1);
  stalls.Settle();
  EXPECT_EQ(stalls.total_ns(), 3);
}

}  // namespace
}  // namespace gemini::client
