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
  const std::string old = absl::StrReplaceAll(
      CostsText({kCosts}), {{"device_update_elements_per_second 500000000\n", ""}});
  ASSERT_NE(old, CostsText({kCosts}));
  EXPECT_EQ(ParseCosts(old), KnownCosts{expected});
}

TEST_F(MachineCostsTest, ADamagedFileIsNoModel) {
  const KnownCosts known = {.costs = kCosts, .guessed = {true, false, false, false, true, false}};
  const std::string good = CostsText(known);
  ASSERT_EQ(ParseCosts(good), known);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"nvme_read", "nvme_reed"},
                                                        {"7250000000", "nan"},
                                                        {"7250000000", "-1"},
                                                        {"7250000000", "1e300"},
                                                        {"4321", "-5"},
                                                        {"4321", "9000000000"},
                                                        {"200000000\n", "\n"},
                                                        {"guess", "guesses"},
                                                        {"4321", "4321 guess"},
                                                        {" guess", " guess guess"},
                                                        {"500000000\n", "nan\n"},
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
