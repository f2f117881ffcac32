// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/reference_block.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "torch/utils.h"
#include "trainer/forecast/compute_rate.h"

namespace gemini::bench {
namespace {

using trainer::ComputeRate;

// Beside products nothing takes any time.
constexpr ComputeRate kProductsAlone = {.memory_bytes_per_second = 1e30, .kernel_ns = 0};

// Forward and backward of 512 tokens: twelve matrices of the width squared, two operations for each
// of their elements, and attention to half of 256 tokens.
constexpr double kMatrixFlops = 3 * 512.0 * 2 * 12 * 384.0 * 384.0;
constexpr double kFlops = kMatrixFlops + 3 * 512.0 * 4 * 384.0 * 128;

TEST(ReferenceBlockTest, WhereProductsTakeAllTimeTheirRateIsTheQuotient) {
  for (const double seconds : {0.01, 0.25}) {
    EXPECT_NEAR(FlopsByReferenceBlock(seconds, kProductsAlone) * seconds / kFlops, 1, 0.01);
  }
}

TEST(ReferenceBlockTest, WhatTheRestTakesIsTakenOff) {
  constexpr double kSeconds = 0.1;
  const double quotient = FlopsByReferenceBlock(kSeconds, kProductsAlone);
  ComputeRate slow_kernels = kProductsAlone;
  slow_kernels.kernel_ns = 100'000;
  ComputeRate slow_memory = kProductsAlone;
  slow_memory.memory_bytes_per_second = 5e9;
  for (const ComputeRate& other : {slow_kernels, slow_memory}) {
    const double rate = FlopsByReferenceBlock(kSeconds, other);
    EXPECT_GT(rate, 1.02 * quotient);
    EXPECT_LT(rate, 3 * quotient);
    EXPECT_LT(FlopsByReferenceBlock(2 * kSeconds, other), 0.5 * rate);
  }
}

TEST(ReferenceBlockTest, WhereTheRestAloneTakesLongerTheRateIsTheBound) {
  ComputeRate other = kProductsAlone;
  other.memory_bytes_per_second = 1;
  EXPECT_NEAR(FlopsByReferenceBlock(0.1, other) * 0.1 / kMatrixFlops, 1000, 10);
}

// It computes all that is counted, backward too: else its rate would be above that of products. The
// margin is that of a machine that others use.
TEST(ReferenceBlockTest, ItsProductsAreNoFasterThanProductsAlone) {
  torch::set_num_threads(1);
  const double before = trainer::MeasureComputeRate().flops_per_second;
  const double seconds = SecondsOfReferenceBlock();
  const double alone = std::max(before, trainer::MeasureComputeRate().flops_per_second);
  EXPECT_GT(seconds, 0);
  EXPECT_LT(kFlops / seconds, 1.5 * alone);
}

}  // namespace
}  // namespace gemini::bench
