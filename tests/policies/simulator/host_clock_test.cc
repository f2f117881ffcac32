// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_clock.h"

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

class HostClockTest : public ::testing::Test {
 protected:
  // When HOST is ready for the first fetch, in the second round.
  int64_t ReadyNs(int64_t rounds_after, int64_t round_ns) {
    time_ = {.now_ns = round_ns, .round_begin_ns = round_ns, .round_ns = round_ns, .rounds = 1};
    trace_.operators.resize(2);
    times_.ready[0] = {{.rounds_after = rounds_after, .first_ns = 7, .last_ns = 9}};
    HostClock clock(trace_, plan_, time_, /*keeps_accesses=*/false);
    clock.set_times(&times_);
    clock.BeginRound();
    return clock.Ask(HostEvent::kFetch, 0, /*asked_ns=*/0, /*chunk_ns=*/1).first_ns;
  }

  RangeTrace trace_;
  Plan plan_;
  SimulatedTime time_;
  HostTimes times_;
};

TEST_F(HostClockTest, AnEventMayBeReadyRoundsLater) {
  EXPECT_EQ(ReadyNs(0, 1000), 1000 + 7);
  EXPECT_EQ(ReadyNs(1, 1000), 2000 + 7);
  EXPECT_EQ(ReadyNs(3, 1000), 4000 + 7);
}

// Rounds that are counted by a short one, of which each is far longer then.
TEST_F(HostClockTest, WhatIsFarBehindIsReadyAtAnEndOfTime) {
  EXPECT_EQ(ReadyNs(867'785, 1'852'559'874'793'000), (int64_t{1} << 60) + 7);
  EXPECT_EQ(ReadyNs(int64_t{1} << 62, 1), (int64_t{1} << 60) + 7);
  EXPECT_EQ(ReadyNs(2, int64_t{1} << 60), (int64_t{1} << 60) + 7);
}

}  // namespace
}  // namespace gemini::policies
