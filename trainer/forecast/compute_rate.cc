// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/compute_rate.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "torch/types.h"

namespace gemini::trainer {
namespace {

// Of many runs the fastest: others' work and first touches only slow them. Where another process
// had one of two processors, products of some milliseconds in all were ten times as slow.
template <typename Work>
double LeastSeconds(Work&& work) {
  constexpr int kLeastRuns = 8;
  constexpr std::chrono::milliseconds kTime(50);
  double least = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  for (int run = 0; run < kLeastRuns || std::chrono::steady_clock::now() - begin < kTime; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return std::max(least, 1e-9);
}

}  // namespace

ComputeRate MeasureComputeRate() {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kWidth = 512;
  const torch::Tensor a = torch::ones({kWidth, kWidth}), b = torch::ones({kWidth, kWidth});
  torch::Tensor product = torch::zeros({kWidth, kWidth});
  const double product_seconds = LeastSeconds([&] { torch::mm_out(product, a, b); });
  constexpr int64_t kElements = 2 << 20;
  const torch::Tensor from = torch::ones({kElements});
  torch::Tensor to = torch::zeros({kElements});
  const double add_seconds = LeastSeconds([&] { torch::add_out(to, from, from); });
  constexpr int64_t kSmall = 16;
  const torch::Tensor small = torch::ones({kSmall});
  torch::Tensor small_to = torch::zeros({kSmall});
  const double small_seconds = LeastSeconds([&] { torch::add_out(small_to, small, small); });
  return {.flops_per_second = 2.0 * kWidth * kWidth * kWidth / product_seconds,
          .memory_bytes_per_second = 3.0 * kElements * sizeof(float) / add_seconds,
          .kernel_ns = static_cast<int64_t>(small_seconds * 1e9)};
}

}  // namespace gemini::trainer
