// SPDX-License-Identifier: Apache-2.0
#include "gemini/cost_model.h"

#include <gtest/gtest.h>

namespace gemini {
namespace {

TEST(CostModelTest, AHeldBackLinkHidesWhatHandingOnTakes) {
  const CostModel machine = {
      .host_to_device = 8e9, .device_to_host = 4e9, .copy_latency_ns = 40'000};
  // 250 us at the slower rate and 40 to hand it on, while the link takes 2 ms.
  CostModel costs = HeldBack(machine, 5e8, 1'000'000);
  EXPECT_EQ(costs.host_to_device, 5e8);
  EXPECT_EQ(costs.device_to_host, 5e8);
  EXPECT_EQ(costs.copy_latency_ns, 0);
  costs = HeldBack(machine, 5e8, 20'000);
  EXPECT_EQ(costs.copy_latency_ns, 5'000);  // 45 us instead of 40.
  EXPECT_EQ(costs.nvme_read, machine.nvme_read);
}

}  // namespace
}  // namespace gemini
