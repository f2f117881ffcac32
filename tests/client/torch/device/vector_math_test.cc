// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/vector_math.h"

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::client::hooks {
namespace {

// In a process of its own: the first call counts. Without ResolveVectorMath it fails in 3 of 100
// processes, where Torch has an MKL before 2025 and two threads.
TEST(VectorMathTest, TheFirstCallOnSeveralThreadsHasTheBitsOfTheSecond) {
  ResolveVectorMath();
  const torch::Tensor x = torch::linspace(0.5, 1.5, 2 * 384 * 128).view({2, 384, 128});
  at::bmm(x, x.transpose(1, 2));  // Threads run from here on.
  for (const auto function : {at::exp, at::log, at::sin, at::cos, at::tanh, at::sqrt}) {
    const torch::Tensor first = function(x);
    EXPECT_TRUE(torch::equal(first, function(x)));
    const torch::Tensor exact = function(x.to(torch::kFloat64));
    EXPECT_LE((first - exact).abs().max().item<double>(), 1e-6);
  }
}

}  // namespace
}  // namespace gemini::client::hooks
