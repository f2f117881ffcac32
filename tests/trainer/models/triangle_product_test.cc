// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/triangle_product.h"

#include <utility>

#include "gtest/gtest.h"
#include "tests/trainer/models/named_layers.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

TEST(TriangleProductTest, APairIsUpdatedByTheEdgesThatLeaveOrEnterItsNodes) {
  for (const auto& [edges, sum] : {std::pair(TriangleEdges::kOutgoing, "bikc,bjkc->bijc"),
                                   std::pair(TriangleEdges::kIncoming, "bkic,bkjc->bijc")}) {
    ModuleGroup root;
    PlainLayers layers(torch::kFloat64);
    const PairTrunkSpec spec = {.pair_width = 5, .triangle_width = 4};
    const TriangleProduct part(root,
                               {.norm_in = "norm_in",
                                .left_gate = "left_gate",
                                .left = "left",
                                .right_gate = "right_gate",
                                .right = "right",
                                .norm_out = "norm_out",
                                .out = "out",
                                .gate = "gate"},
                               edges, spec, NormSpec(), layers);
    const NamedLayers named(root);
    const Tensor pairs = torch::randn({2, 3, 3, 5}, torch::kFloat64);
    const Tensor in = named.Norm(pairs, "norm_in");
    const Tensor left = torch::sigmoid(named.Linear(in, "left_gate")) * named.Linear(in, "left");
    const Tensor right = torch::sigmoid(named.Linear(in, "right_gate")) * named.Linear(in, "right");
    const Tensor product = named.Norm(torch::einsum(sum, {left, right}), "norm_out");
    const Tensor expected = torch::sigmoid(named.Linear(in, "gate")) * named.Linear(product, "out");
    EXPECT_TRUE(torch::allclose(part.Forward(pairs), expected)) << sum;
  }
}

}  // namespace
}  // namespace gemini::trainer
