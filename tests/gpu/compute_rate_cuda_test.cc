// SPDX-License-Identifier: Apache-2.0
// What a GPU is measured to compute and to copy a second, before a run's first step.
#include "absl/strings/str_cat.h"
#include "client/torch/device/gpu_device.h"
#include "gtest/gtest.h"
#include "tests/gpu/probe/probe.h"
#include "tests/status_matchers.h"
#include "torch/types.h"
#include "trainer/forecast/compute_rate.h"

namespace gemini::trainer {
namespace {

// From a small GPU in an old slot to those that come.
TEST(ComputeRateOnGpu, AGpuComputesAndCopiesWhatGpusDo) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, client::hooks::OpenGpu(0));
  EXPECT_GT(gpu->context_bytes(), 32 << 20);
  EXPECT_LT(gpu->context_bytes(), int64_t{4} << 30);
  for (const c10::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
    ASSERT_OK_AND_ASSIGN(const GpuRates rates, MeasureGpuRates(gpu->device(), type));
    const auto& [compute, costs] = rates;
    EXPECT_GT(compute.flops_per_second, 1e12);
    EXPECT_LT(compute.flops_per_second, 1e16);
    EXPECT_GT(compute.memory_bytes_per_second, 5e10);
    EXPECT_LT(compute.memory_bytes_per_second, 1e14);
    EXPECT_GT(compute.kernel_ns, 500);
    EXPECT_LT(compute.kernel_ns, 100'000);
    for (const double link : {costs.host_to_device, costs.device_to_host}) {
      EXPECT_GT(link, 1e9);
      EXPECT_LT(link, 1e12);
    }
    probe::Answer(absl::StrCat("what is measured before a run in ", c10::toString(type)),
                  {{"TFLOP_per_second", compute.flops_per_second * 1e-12},
                   {"memory_GB_per_second", compute.memory_bytes_per_second * 1e-9},
                   {"kernel_us", static_cast<double>(compute.kernel_ns) * 1e-3},
                   {"to_device_GB_per_second", costs.host_to_device * 1e-9},
                   {"from_device_GB_per_second", costs.device_to_host * 1e-9},
                   {"updates_in_host_per_us", costs.update_elements_per_second * 1e-6}});
  }
}

}  // namespace
}  // namespace gemini::trainer
