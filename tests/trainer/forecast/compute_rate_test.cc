// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/compute_rate.h"

#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "torch/types.h"

namespace gemini::trainer {
namespace {

// From a small processor that others use, too, to the largest.
TEST(ComputeRateTest, AProcessorComputesWhatProcessorsDo) {
  for (const ComputeRate& rate : {MeasureComputeRate(), MeasureSharedComputeRate()}) {
    EXPECT_GT(rate.flops_per_second, 1e9);
    EXPECT_LT(rate.flops_per_second, 1e14);
    EXPECT_GT(rate.memory_bytes_per_second, 1e8);
    EXPECT_LT(rate.memory_bytes_per_second, 1e13);
    EXPECT_GT(rate.kernel_ns, 100);
    EXPECT_LT(rate.kernel_ns, 1'000'000);
  }
}

TEST(ComputeRateTest, WithoutAGpuTheErrorNamesIt) {
  if (torch::hasCUDA()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(MeasureGpuRates(torch::Device(torch::kCUDA, 0), torch::kBFloat16),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("cuda:0")));
}

}  // namespace
}  // namespace gemini::trainer
