// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/outer_product_mean.h"

#include "gtest/gtest.h"
#include "tests/trainer/models/named_layers.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

TEST(OuterProductMeanTest, IsTheMeanOverSequencesOfProductsOfTwoResidues) {
  ModuleGroup root;
  PlainLayers layers(torch::kFloat64);
  const PairTrunkSpec spec = {.msa_width = 6, .pair_width = 5, .outer_width = 3};
  const OuterProductMean part(root,
                              {.norm = "norm", .left = "left", .right = "right", .out = "out"},
                              spec, NormSpec(), layers);
  const NamedLayers named(root);
  const Tensor msa = torch::randn({2, 4, 3, 6}, torch::kFloat64);
  const Tensor in = named.Norm(msa, "norm");
  const Tensor products =
      torch::einsum("bsil,bsjr->bijlr", {named.Linear(in, "left"), named.Linear(in, "right")});
  const Tensor expected = named.Linear((products / 4).flatten(3), "out");
  EXPECT_TRUE(torch::allclose(part.Forward(msa), expected));
}

}  // namespace
}  // namespace gemini::trainer
