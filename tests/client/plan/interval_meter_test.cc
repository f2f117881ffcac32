// SPDX-License-Identifier: Apache-2.0
#include "client/plan/interval_meter.h"

#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/client/device/late_clock.h"

namespace gemini::client {
namespace {

class IntervalMeterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    meter_.Begin(0);
    clock_.Reach({1000});
    EXPECT_TRUE(meter_.Take().has_value());  // What was before.
  }
  // What was measured next, by its number.
  void ExpectTaken(int64_t number, int64_t compute_ns) {
    const std::optional<IntervalMeter::Interval> interval = meter_.Take();
    ASSERT_TRUE(interval.has_value());
    EXPECT_EQ(interval->number, number);
    EXPECT_EQ(interval->compute_ns, compute_ns);
  }
  TimelineEvent Shown(uint64_t number) const {
    return ReadTimelineEvent(*timeline_, number).value_or(TimelineEvent{.subject = 999});
  }

  LateClock clock_;
  const std::unique_ptr<TimelineShm> timeline_ = std::make_unique<TimelineShm>();
  const std::unique_ptr<ClientSegmentHeaderShm> header_ =
      std::make_unique<ClientSegmentHeaderShm>();
  SpaceCounters counters_{header_.get()};
  StallTimes stalls_{clock_};
  DeviceBudget budget_{1 << 20};
  IntervalMeter meter_{clock_, stalls_, budget_, timeline_.get()};
};

TEST_F(IntervalMeterTest, AnIntervalIsTakenWhenItsEndIsReached) {
  const int64_t first = meter_.number();
  meter_.Begin(1);
  meter_.Begin(-1);
  EXPECT_FALSE(meter_.Take().has_value());
  clock_.Reach({1200});
  ExpectTaken(first, 200);
  EXPECT_FALSE(meter_.Take().has_value());
  clock_.Reach({1250});
  ExpectTaken(first + 1, 50);
  EXPECT_EQ(Shown(1).subject, 0u);
  EXPECT_EQ(Shown(2).subject, 1u);
  EXPECT_EQ(Shown(2).begin_ns, 1200);
  EXPECT_EQ(Shown(2).end_ns, 1250);
  EXPECT_EQ(timeline_->written, 2u);
}

// Though all is known at the same time.
TEST_F(IntervalMeterTest, EachIntervalHasTheWaitsThatWereAddedInIt) {
  stalls_.Add(counters_, StallCause::kTransfer, stalls_.Now());
  meter_.Begin(1);
  stalls_.Add(counters_, StallCause::kTransfer, stalls_.Now());
  stalls_.Add(counters_, StallCause::kUpdate, stalls_.Now());
  meter_.Begin(2);
  clock_.Reach({1010, 1040, 1100, 1100, 1101, 1105, 1125, 1200});
  const int64_t first = meter_.number() - 2;
  ExpectTaken(first, 70);
  ExpectTaken(first + 1, 79);
  EXPECT_EQ(Shown(1).stall_ns, 30);
  EXPECT_EQ(Shown(1).begin_ns, 1030);
  EXPECT_EQ(Shown(2).stall_ns, 21);
  EXPECT_EQ(Shown(2).cause, StallCause::kUpdate);
}

// Between clocks that agree within microseconds.
TEST_F(IntervalMeterTest, NothingIsShorterThanNothing) {
  meter_.Begin(1);
  stalls_.Add(counters_, StallCause::kTransfer, stalls_.Now());
  meter_.Begin(2);
  clock_.Reach({990, 1010, 1005, 1020});
  const int64_t first = meter_.number() - 2;
  ExpectTaken(first, 0);
  ExpectTaken(first + 1, 30);
  EXPECT_EQ(stalls_.total_ns(), 0);
  EXPECT_EQ(Shown(1).begin_ns, 990);
  EXPECT_EQ(Shown(1).end_ns, 990);
}

TEST_F(IntervalMeterTest, WhatIsLeftOutIsNotComputed) {
  OperatorPoint begin = clock_.Now();
  meter_.LeaveOut({std::move(begin), clock_.Now()});
  meter_.Begin(1);
  meter_.Begin(2);
  clock_.Reach({1001, 1091, 1100, 1300});
  const int64_t first = meter_.number() - 2;
  ExpectTaken(first, 10);
  ExpectTaken(first + 1, 200);
}

}  // namespace
}  // namespace gemini::client
