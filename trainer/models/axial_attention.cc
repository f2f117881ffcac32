// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/axial_attention.h"

#include <cmath>
#include <string>
#include <utility>

#include "ATen/ops/matmul.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {

AxialAttention::AxialAttention(torch::nn::Module& root, const AxialAttentionNames& names,
                               const Shape& shape, const NormSpec& norm, LayerSet& layers)
    : axis_(shape.axis),
      head_size_(shape.heads.head_size),
      scale_(1 / std::sqrt(static_cast<double>(shape.heads.head_size))) {
  const int64_t num_heads = shape.heads.num_heads;
  // All of these have an output for each head, so that a set that splits heads splits them alike.
  const auto project = [&](const std::string& name, int64_t in, int64_t out, bool bias) {
    return AddModule(root, name,
                     layers.Linear({.in = in, .out = out, .bias = bias, .heads = num_heads},
                                   Role::kQueryKeyValue));
  };
  norm_ = AddModule(root, names.norm, layers.Norm(norm, shape.width));
  // A shared input is asked for just before the linear layers that read it.
  if (!names.bias_norm.empty()) {
    bias_norm_ = AddModule(root, names.bias_norm, layers.Norm(norm, shape.bias_width));
    bias_input_ = layers.SharedInput();
    bias_ = project(names.bias, shape.bias_width, num_heads, /*bias=*/false);
  }
  input_ = layers.SharedInput();
  if (names.bias_norm.empty() && !names.bias.empty()) {
    bias_ = project(names.bias, shape.width, num_heads, /*bias=*/false);
  }
  const int64_t inner = num_heads * head_size_;
  query_ = project(names.query, shape.width, inner, /*bias=*/false);
  key_ = project(names.key, shape.width, inner, /*bias=*/false);
  value_ = project(names.value, shape.width, inner, /*bias=*/false);
  gate_ = project(names.gate, shape.width, inner, /*bias=*/true);
  out_ = AddModule(
      root, names.out,
      layers.Linear({.in = inner, .out = shape.width, .bias = true}, Role::kAttentionOut));
}

torch::Tensor AxialAttention::Forward(const torch::Tensor& x, const torch::Tensor& pairs) const {
  torch::Tensor in = norm_->Forward(x);
  if (input_) in = input_->Forward(in);
  torch::Tensor bias = Bias(in, pairs);
  torch::Tensor weights;
  {
    // The query is scaled and not the scores, which are more.
    const torch::Tensor query = Heads(*query_, in) * scale_;
    weights = at::matmul(query, Heads(*key_, in).transpose(-2, -1));
  }
  if (bias.defined()) weights = weights + std::exchange(bias, {});
  weights = at::softmax(weights, /*dim=*/-1);
  torch::Tensor attended = at::matmul(weights, Heads(*value_, in));
  weights.reset();
  // Back to [batch, rows, columns, heads, head size].
  attended = axis_ == AttentionAxis::kRows ? attended.permute({0, 1, 3, 2, 4})
                                           : attended.permute({0, 3, 1, 2, 4});
  const torch::Tensor gate = at::sigmoid(gate_->Forward(in)).unflatten(-1, {-1, head_size_});
  // The gate is the first factor: the product lies as it does, which is contiguous.
  return out_->Forward((gate * attended).flatten(-2));
}

torch::Tensor AxialAttention::Bias(const torch::Tensor& in, const torch::Tensor& pairs) const {
  if (!bias_) return {};
  torch::Tensor from = in;
  if (bias_norm_) {
    from = bias_norm_->Forward(pairs);
    if (bias_input_) from = bias_input_->Forward(from);
  }
  const torch::Tensor bias = bias_->Forward(from);
  return (axis_ == AttentionAxis::kRows ? bias.permute({0, 3, 1, 2}) : bias.permute({0, 3, 2, 1}))
      .unsqueeze(1);
}

torch::Tensor AxialAttention::Heads(const Layer& layer, const torch::Tensor& in) const {
  const torch::Tensor heads = layer.Forward(in).unflatten(-1, {-1, head_size_});
  return axis_ == AttentionAxis::kRows ? heads.permute({0, 1, 3, 2, 4})
                                       : heads.permute({0, 2, 3, 1, 4});
}

}  // namespace gemini::trainer
