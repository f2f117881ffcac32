// SPDX-License-Identifier: Apache-2.0
#include "server/plans/machine_costs.h"

#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/plans/state_file.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr CostModel kCosts = {.host_to_device = 7.25e9,
                              .device_to_host = 6.5e9,
                              .nvme_read = 1.0 / 3 * 1e9,
                              .nvme_write = 2e8,
                              .update_elements_per_second = 3e8,
                              .device_update_elements_per_second = 5e8,
                              .copy_latency_ns = 4321};

// As measured at the start, all of it.
KnownCosts Measured(const CostModel& costs) {
  return {
      .costs = costs,
      .calibrated = {costs.host_to_device, costs.device_to_host, costs.nvme_read, costs.nvme_write,
                     costs.update_elements_per_second, costs.device_update_elements_per_second}};
}

class MachineCostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/costs-XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(MachineCostsTest, WhatWasKeptIsThereAgain) {
  MachineCosts first(directory_, false);
  EXPECT_FALSE(first.Load());
  first.Set(kCosts);
  first.Refresh({.update_elements = 1e8, .device_update_elements = 7e8});
  MachineCosts second(directory_, false);
  ASSERT_TRUE(second.Load());
  EXPECT_EQ(second.costs(), first.costs());
  EXPECT_EQ(second.costs().update_elements_per_second, 2e8);
  EXPECT_EQ(second.costs().device_update_elements_per_second, 6e8);
  EXPECT_EQ(second.costs().nvme_read, kCosts.nvme_read);
}

TEST_F(MachineCostsTest, AGpuHasCostsOfItsOwn) {
  MachineCosts(directory_, false).Set(kCosts);
  MachineCosts gpu(directory_, true);
  EXPECT_FALSE(gpu.Load());
  const CostModel fast = {.host_to_device = 5e10};
  gpu.Set(fast);
  MachineCosts host(directory_, false), gpu_again(directory_, true);
  EXPECT_TRUE(host.Load());
  EXPECT_EQ(host.costs(), kCosts);
  EXPECT_TRUE(gpu_again.Load());
  EXPECT_EQ(gpu_again.costs(), fast);
}

// Nothing of it is measured at the start.
TEST_F(MachineCostsTest, AGuessGivesWayToTheFirstMeasurement) {
  MachineCosts first(directory_, /*device_is_gpu=*/true);
  first.Set(kCosts);
  first.Refresh({.host_to_device = 5e10, .update_elements = 1e8});
  EXPECT_EQ(first.costs().host_to_device, 5e10);
  EXPECT_EQ(first.costs().update_elements_per_second, 2e8);  // It was measured.
  MachineCosts second(directory_, /*device_is_gpu=*/true);
  ASSERT_TRUE(second.Load());
  second.Refresh({.host_to_device = 3e10, .device_to_host = 2e10, .device_update_elements = 1e11});
  EXPECT_EQ(second.costs().host_to_device, 4e10);
  EXPECT_EQ(second.costs().device_to_host, 2e10);
  EXPECT_EQ(second.costs().device_update_elements_per_second, 1e11);
  second.Refresh({.device_to_host = 4e10});
  EXPECT_EQ(second.costs().device_to_host, 3e10);
}

TEST_F(MachineCostsTest, OnlyRatesThatAMachineCanHaveRefreshIt) {
  MachineCosts costs("", false);
  costs.Set(kCosts);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double rate : {0.0, -1e9, 999.0, 1.01e14, infinity, -infinity, std::nan("")}) {
    costs.Refresh({rate, rate, rate, rate, rate, rate});
    EXPECT_EQ(costs.costs(), kCosts) << rate;
  }
  costs.Refresh({.nvme_write = 4e8});
  EXPECT_EQ(costs.costs().nvme_write, 3e8);
  EXPECT_EQ(costs.costs().nvme_read, kCosts.nvme_read);
}

TEST_F(MachineCostsTest, AFileFromBeforeUpdatesOnDeviceHasTheRateOfHost) {
  CostModel expected = kCosts;
  expected.device_update_elements_per_second = expected.update_elements_per_second;
  const std::string text = CostsText(Measured(kCosts));
  const std::string old =
      absl::StrReplaceAll(text, {{"device_update_elements_per_second 500000000 500000000\n", ""}});
  ASSERT_NE(old, text);
  EXPECT_EQ(ParseCosts(old), Measured(expected));
}

TEST_F(MachineCostsTest, AFileFromBeforeCalibratedRatesWereKeptCountsAsCalibrated) {
  EXPECT_EQ(ParseCosts("host_to_device 7250000000\n"
                       "device_to_host 6500000000 guess\n"
                       "nvme_read 1000000000\n"
                       "nvme_write 200000000\n"
                       "update_elements_per_second 300000000\n"
                       "device_update_elements_per_second 500000000 guess\n"
                       "copy_latency_ns 4321\n"),
            (KnownCosts{.costs = {.host_to_device = 7.25e9,
                                  .device_to_host = 6.5e9,
                                  .nvme_read = 1e9,
                                  .nvme_write = 2e8,
                                  .update_elements_per_second = 3e8,
                                  .device_update_elements_per_second = 5e8,
                                  .copy_latency_ns = 4321},
                        .calibrated = {7.25e9, 0, 1e9, 2e8, 3e8, 0}}));
}

// Whatever clients say, and however often: the plans of all jobs reckon with these.
TEST_F(MachineCostsTest, TheFirstMeasurementOfAGpuIsNoFurtherFromTheGuessThanAFactorOf256) {
  MachineCosts costs(directory_, /*device_is_gpu=*/true);
  costs.Set(kCosts);
  costs.Refresh({.host_to_device = 1e14, .device_to_host = 2e3});
  EXPECT_DOUBLE_EQ(costs.costs().host_to_device, 256 * kCosts.host_to_device);
  EXPECT_DOUBLE_EQ(costs.costs().device_to_host, kCosts.device_to_host / 256);
}

TEST_F(MachineCostsTest, MeasurementsMoveARateByAFactorOfFourFromTheCalibratedOneAtMost) {
  MachineCosts first(directory_, false);
  first.Set(kCosts);
  for (int i = 0; i < 60; ++i) first.Refresh({.host_to_device = 1e13, .nvme_write = 2e3});
  EXPECT_DOUBLE_EQ(first.costs().host_to_device, 4 * kCosts.host_to_device);
  EXPECT_DOUBLE_EQ(first.costs().nvme_write, kCosts.nvme_write / 4);
  // By what was calibrated, not by what it was when the server started.
  MachineCosts second(directory_, false);
  ASSERT_TRUE(second.Load());
  for (int i = 0; i < 60; ++i) second.Refresh({.host_to_device = 1e13, .nvme_write = 2e3});
  EXPECT_DOUBLE_EQ(second.costs().host_to_device, 4 * kCosts.host_to_device);
  EXPECT_DOUBLE_EQ(second.costs().nvme_write, kCosts.nvme_write / 4);
  // And it comes back.
  for (int i = 0; i < 60; ++i) second.Refresh({.nvme_write = 2.5e8});
  EXPECT_NEAR(second.costs().nvme_write, 2.5e8, 1);
}

TEST_F(MachineCostsTest, WhatWouldBeRefreshedChangesNothing) {
  MachineCosts costs(directory_, false);
  costs.Set(kCosts);
  EXPECT_EQ(costs.Refreshed({.nvme_write = 4e8}).nvme_write, 3e8);
  EXPECT_EQ(costs.costs(), kCosts);
}

TEST_F(MachineCostsTest, WhoMustNotKeepReadsWhatIsKept) {
  MachineCosts(directory_, false).Set(kCosts);
  MachineCosts reader(directory_, false);
  reader.DoNotKeep();
  ASSERT_TRUE(reader.Load());
  reader.Refresh({.nvme_write = 4e8});
  EXPECT_EQ(reader.costs().nvme_write, 3e8);
  MachineCosts next(directory_, false);
  ASSERT_TRUE(next.Load());
  EXPECT_EQ(next.costs(), kCosts);
}

TEST_F(MachineCostsTest, ADamagedFileIsNoModel) {
  KnownCosts known = Measured(kCosts);
  known.calibrated[0] = known.calibrated[4] = 0;
  const std::string good = CostsText(known);
  ASSERT_EQ(ParseCosts(good), known);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"nvme_read", "nvme_reed"},
                                                        {"7250000000", "nan"},
                                                        {"7250000000", "-1"},
                                                        {"7250000000", "1e300"},
                                                        {"4321", "-5"},
                                                        {"4321", "9000000000"},
                                                        {"200000000 200000000\n", "\n"},
                                                        {"guess", "guesses"},
                                                        {"4321", "4321 guess"},
                                                        {" guess", " guess guess"},
                                                        {"500000000\n", "nan\n"},
                                                        {"500000000\n", "1e300\n"},
                                                        {"500000000\n", "-1\n"},
                                                        {"device_update", "device_updates"},
                                                        {"copy_latency_ns 4321\n", ""},
                                                        {"device_to_host", "host_to_device"}}) {
    const std::string bad = absl::StrReplaceAll(good, {{from, to}});
    ASSERT_NE(bad, good) << from;
    EXPECT_EQ(ParseCosts(bad), std::nullopt) << bad;
  }
  MachineCosts(directory_, false).Set(kCosts);
  const std::string name = std::filesystem::directory_iterator(directory_)->path().filename();
  ASSERT_OK(WriteStateFile(directory_, name, "nonsense"));
  EXPECT_FALSE(MachineCosts(directory_, false).Load());
}

}  // namespace
}  // namespace gemini::server
