// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/axial_attention.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/trainer/models/named_layers.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kHeads = 2, kHeadSize = 3, kWidth = 5;

// What attention along the rows of x gives, with biases [batch, 1, heads, columns, columns].
Tensor AlongRows(const NamedLayers& named, const Tensor& in, const Tensor& bias) {
  const auto heads = [&](const char* name) {
    return named.Linear(in, name).unflatten(-1, {kHeads, kHeadSize}).transpose(-2, -3);
  };
  const Tensor scores =
      torch::matmul(heads("query"), heads("key").transpose(-2, -1)) / std::sqrt(kHeadSize) + bias;
  const Tensor attended = torch::matmul(torch::softmax(scores, -1), heads("value"));
  const Tensor gated =
      attended.transpose(-2, -3).flatten(-2) * torch::sigmoid(named.Linear(in, "gate"));
  return named.Linear(gated, "out");
}

class AxialAttentionTest : public ::testing::Test {
 protected:
  AxialAttention Make(AttentionAxis axis, const std::string& bias_norm) {
    return {root_,
            {.norm = "norm",
             .bias_norm = bias_norm,
             .bias = "bias",
             .query = "query",
             .key = "key",
             .value = "value",
             .gate = "gate",
             .out = "out"},
            {.axis = axis, .heads = {kHeads, kHeadSize}, .width = kWidth, .bias_width = 4},
            NormSpec(),
            layers_};
  }

  ModuleGroup root_;
  PlainLayers layers_{torch::TensorOptions(torch::kFloat64)};
};

TEST_F(AxialAttentionTest, RowsAreBiasedByThePairsOfTheirElements) {
  const AxialAttention part = Make(AttentionAxis::kRows, "bias_norm");
  const NamedLayers named(root_);
  const Tensor x = torch::randn({2, 4, 3, kWidth}, torch::kFloat64);
  const Tensor pairs = torch::randn({2, 3, 3, 4}, torch::kFloat64);
  const Tensor bias = named.Linear(named.Norm(pairs, "bias_norm"), "bias");
  const Tensor expected =
      AlongRows(named, named.Norm(x, "norm"), bias.permute({0, 3, 1, 2}).unsqueeze(1));
  EXPECT_TRUE(torch::allclose(part.Forward(x, pairs), expected));
}

TEST_F(AxialAttentionTest, ColumnsAreRowsOfWhatIsTransposed) {
  const AxialAttention part = Make(AttentionAxis::kColumns, "");
  const NamedLayers named(root_);
  const Tensor x = torch::randn({2, 3, 3, kWidth}, torch::kFloat64);
  // The bias is made of what attends: that of query i and key j is of the pair (j, i).
  const Tensor turned = named.Norm(x, "norm").transpose(1, 2);
  const Tensor bias = named.Linear(turned, "bias").permute({0, 3, 1, 2}).unsqueeze(1);
  const Tensor expected = AlongRows(named, turned, bias).transpose(1, 2);
  EXPECT_TRUE(torch::allclose(part.Forward(x), expected));
}

}  // namespace
}  // namespace gemini::trainer
