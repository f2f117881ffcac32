// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/transition.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/trainer/models/named_layers.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

TEST(TransitionTest, IsANormAndTwoLinearLayersWithAReluBetween) {
  ModuleGroup root;
  PlainLayers layers(torch::kFloat64);
  const Transition part(root, {.norm = "norm", .in = "in", .out = "out"}, /*width=*/6, /*factor=*/3,
                        NormSpec(), layers);
  const NamedLayers named(root);
  EXPECT_EQ(root.named_parameters()["in.weight"].sizes(), (std::vector<int64_t>{18, 6}));
  const Tensor x = torch::randn({2, 3, 4, 6}, torch::kFloat64);
  const Tensor expected =
      named.Linear(torch::relu(named.Linear(named.Norm(x, "norm"), "in")), "out");
  EXPECT_TRUE(torch::allclose(part.Forward(x), expected));
}

}  // namespace
}  // namespace gemini::trainer
