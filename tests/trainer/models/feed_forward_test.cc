// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/feed_forward.h"

#include <string>

#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

TEST(FeedForwardTest, TheActivationIsOfTheGateOrOfTheFirstMatrix) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (const bool gated : {false, true}) {
    PlainLayers layers(torch::kFloat64);
    ModuleGroup root;
    const FeedForward part(root, {.gate = "a.gate", .in = "a.in", .out = "a.out"},
                           {.width = 10, .activation = Activation::kSilu, .gated = gated},
                           /*width=*/6, MatrixLayout::kOutIn, layers);
    const auto named = root.named_parameters();
    EXPECT_EQ(named.size(), gated ? 6u : 4u);
    for (const auto& parameter : named) parameter.value().normal_();
    const auto linear = [&named](const std::string& name, const Tensor& x) {
      return x.matmul(named[name + ".weight"].t()) + named[name + ".bias"];
    };
    const Tensor x = torch::randn({3, 6}, torch::kFloat64);
    const Tensor inner = linear("a.in", x);
    const Tensor fed = gated ? torch::silu(linear("a.gate", x)) * inner : torch::silu(inner);
    EXPECT_TRUE(torch::allclose(part.Forward(x), linear("a.out", fed), 1e-12, 1e-12)) << gated;
  }
}

}  // namespace
}  // namespace gemini::trainer
