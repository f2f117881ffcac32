// SPDX-License-Identifier: Apache-2.0
#include "client/session/observed_rates.h"

#include <memory>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

class ObservedRatesTest : public ::testing::Test {
 protected:
  // `count` events of a MiB each, with a pause behind each.
  void Write(TimelineLane lane, int count, int64_t duration_ns = 1'000'000) {
    for (int i = 0; i < count; ++i, now_ns_ += 2 * duration_ns) {
      WriteTimelineEvent(*ring_, {.lane = lane,
                                  .begin_ns = now_ns_,
                                  .end_ns = now_ns_ + duration_ns,
                                  .size_bytes = 1 << 20});
    }
  }
  const std::unique_ptr<TimelineShm> ring_ = std::make_unique<TimelineShm>();
  int64_t now_ns_ = 1;
};

TEST_F(ObservedRatesTest, EachLaneHasItsRateAndPausesDoNotCount) {
  Write(TimelineLane::kFetch, 40);
  Write(TimelineLane::kOperator, 40);
  Write(TimelineLane::kUpdate, 40);
  Write(TimelineLane::kDeviceUpdate, 40, 500'000);
  const ObservedRates rates = ObserveRates(*ring_);
  EXPECT_DOUBLE_EQ(rates.host_to_device, (1 << 20) * 1e3);
  EXPECT_DOUBLE_EQ(rates.update_elements, (1 << 18) * 1e3);
  EXPECT_DOUBLE_EQ(rates.device_update_elements, (1 << 18) * 2e3);
  EXPECT_EQ(rates.device_to_host, 0);
  EXPECT_EQ(rates.nvme_read, 0);
  EXPECT_EQ(rates.nvme_write, 0);
}

// What came before was held up by something that has ended.
TEST_F(ObservedRatesTest, OfTheLinkOnlyWhatBeganLateEnoughCounts) {
  Write(TimelineLane::kNvmeRead, 100);
  Write(TimelineLane::kEvict, 100, 9'000'000);
  Write(TimelineLane::kFetch, 100, 9'000'000);
  const int64_t since_ns = now_ns_ - 18'000'000 + 1;  // The last one was under way.
  EXPECT_EQ(ObserveRates(*ring_, since_ns).host_to_device, 0);
  EXPECT_EQ(ObserveRates(*ring_, since_ns).device_to_host, 0);
  Write(TimelineLane::kFetch, 40);
  Write(TimelineLane::kEvict, 40, 500'000);
  const ObservedRates rates = ObserveRates(*ring_, since_ns);
  EXPECT_DOUBLE_EQ(rates.host_to_device, (1 << 20) * 1e3);
  EXPECT_DOUBLE_EQ(rates.device_to_host, (1 << 20) * 2e3);
  EXPECT_DOUBLE_EQ(rates.nvme_read, (1 << 20) * 1e3);
}

TEST_F(ObservedRatesTest, AFewBytesSayNothing) {
  Write(TimelineLane::kNvmeRead, 31);
  EXPECT_EQ(ObserveRates(*ring_).nvme_read, 0);
  Write(TimelineLane::kNvmeRead, 1);
  EXPECT_GT(ObserveRates(*ring_).nvme_read, 0);
}

TEST_F(ObservedRatesTest, OnlyWhatTheRingStillHoldsCounts) {
  Write(TimelineLane::kNvmeWrite, 100);
  Write(TimelineLane::kEvict, kTimelineEntries);
  const ObservedRates rates = ObserveRates(*ring_);
  EXPECT_EQ(rates.nvme_write, 0);
  EXPECT_DOUBLE_EQ(rates.device_to_host, (1 << 20) * 1e3);
}

}  // namespace
}  // namespace gemini::client
