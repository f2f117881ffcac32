// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/compute_rate.h"

#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/mm.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "torch/types.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::trainer {
namespace {

// From a small processor that others use, too, to the largest.
TEST(ComputeRateTest, AProcessorComputesWhatProcessorsDo) {
  for (const ComputeRate& rate : {MeasureComputeRate(), MeasureSharedComputeRate()}) {
    EXPECT_GT(rate.flops_per_second, 1e9);
    EXPECT_LT(rate.flops_per_second, 1e14);
    EXPECT_GT(rate.memory_bytes_per_second, 1e8);
    EXPECT_LT(rate.memory_bytes_per_second, 1e13);
    // As the rest, of whatever processor; its blocks are smaller, and nothing skips what is masked.
    EXPECT_GT(rate.attention_flops_per_second, rate.flops_per_second / 50);
    EXPECT_LT(rate.attention_flops_per_second, rate.flops_per_second * 5);
    EXPECT_GT(rate.kernel_ns, 100);
    EXPECT_LT(rate.kernel_ns, 1'000'000);
  }
}

// A rate of attention that is not known is that of products.
TEST(ComputeRateTest, AttentionIsForetoldByARateOfItsOwn) {
  const torch::Tensor heads = torch::empty({2, 4, 64, 32}, torch::kMeta);
  const torch::Tensor matrix = torch::empty({64, 64}, torch::kMeta);
  const auto attention = [&] {
    at::_scaled_dot_product_flash_attention_for_cpu(heads, heads, heads, /*dropout_p=*/0,
                                                    /*is_causal=*/true);
  };
  const auto product = [&] { at::mm(matrix, matrix); };
  ComputeRate rate = {.flops_per_second = 1e9, .memory_bytes_per_second = 1e15};
  const int64_t alike = ForetoldKernelNs(rate, attention);
  const int64_t of_product = ForetoldKernelNs(rate, product);
  EXPECT_EQ(alike, 2 * 2 * 4 * 64 * 64 * 32);  // Two products, half of which is masked.
  rate.attention_flops_per_second = 0.25e9;
  EXPECT_EQ(ForetoldKernelNs(rate, attention), 4 * alike);
  EXPECT_EQ(ForetoldKernelNs(rate, product), of_product);
}

TEST(ComputeRateTest, WithoutAGpuTheErrorNamesIt) {
  if (torch::hasCUDA()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(MeasureGpuRates(torch::Device(torch::kCUDA, 0), torch::kBFloat16),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("cuda:0")));
}

}  // namespace
}  // namespace gemini::trainer
