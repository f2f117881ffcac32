// SPDX-License-Identifier: Apache-2.0
#include "server/plans/calibration.h"

#include <stdlib.h>

#include <filesystem>
#include <optional>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace gemini::server {
namespace {

TEST(CalibrationTest, EveryRateIsMeasuredAndNoFileIsLeft) {
  std::string name = ::testing::TempDir() + "/disk-XXXXXX";
  const std::string directory = ::mkdtemp(name.data());
  const CostModel unmeasured;
  const CostModel costs = Calibrate({{directory, int64_t{8} << 20}},
                                    /*gpu_memory_rate=*/std::nullopt, [] { return false; });
  // Measured numbers are never exactly the assumed ones; and no machine that runs this is slower
  // than a tenth of a percent of them, or faster than a thousand times.
  for (const auto& rate :
       {&CostModel::host_to_device, &CostModel::device_to_host, &CostModel::nvme_read,
        &CostModel::nvme_write, &CostModel::update_elements_per_second,
        &CostModel::device_update_elements_per_second}) {
    EXPECT_NE(costs.*rate, unmeasured.*rate);
    EXPECT_GT(costs.*rate, unmeasured.*rate / 1000);
    EXPECT_LT(costs.*rate, unmeasured.*rate * 1000);
  }
  // DEVICE is a host arena.
  EXPECT_EQ(costs.device_update_elements_per_second, costs.update_elements_per_second);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

TEST(CalibrationTest, WhatCannotBeMeasuredKeepsItsValue) {
  const CostModel unmeasured;
  const CostModel costs = Calibrate({{"/nonexistent", 1 << 20}}, /*gpu_memory_rate=*/std::nullopt,
                                    [] { return false; });
  EXPECT_EQ(costs.nvme_read, unmeasured.nvme_read);
  EXPECT_EQ(costs.nvme_write, unmeasured.nvme_write);
}

TEST(CalibrationTest, OfAGpuNothingIsMeasured) {
  const CostModel unmeasured;
  const CostModel costs = Calibrate({}, /*gpu_memory_rate=*/0, [] { return false; });
  EXPECT_EQ(costs.host_to_device, unmeasured.host_to_device);
  EXPECT_EQ(costs.device_to_host, unmeasured.device_to_host);
  EXPECT_EQ(costs.copy_latency_ns, kGpuCopyLatencyNs);
  EXPECT_DOUBLE_EQ(costs.device_update_elements_per_second, 7e9);  // An estimate.
  EXPECT_NE(costs.update_elements_per_second, unmeasured.update_elements_per_second);
}

TEST(CalibrationTest, UpdatesOnAGpuAreByTheRateOfItsMemory) {
  const CostModel costs = Calibrate({}, /*gpu_memory_rate=*/4e12, [] { return true; });
  EXPECT_DOUBLE_EQ(costs.device_update_elements_per_second, 1e11);
}

TEST(CalibrationTest, ItEndsWhenItIsToldTo) {
  int asked = 0;
  Calibrate({}, /*gpu_memory_rate=*/std::nullopt, [&asked] { return ++asked > 0; });
  EXPECT_EQ(asked, 2);  // Once for copies, once for updates.
}

}  // namespace
}  // namespace gemini::server
