// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/triangle_product.h"

#include <string>

#include "ATen/ops/matmul.h"
#include "ATen/ops/sigmoid.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
namespace {

torch::Tensor Gated(const Layer& gate, const Layer& layer, const torch::Tensor& in) {
  const torch::Tensor factor = at::sigmoid(gate.Forward(in));
  return factor * layer.Forward(in);
}

}  // namespace

TriangleProduct::TriangleProduct(torch::nn::Module& root, const TriangleProductNames& names,
                                 TriangleEdges edges, const PairTrunkSpec& spec,
                                 const NormSpec& norm, LayerSet& layers)
    : edges_(edges) {
  const int64_t width = spec.triangle_width;
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, Role role) {
    return AddModule(root, name, layers.Linear({.in = in, .out = out, .bias = true}, role));
  };
  norm_in_ = AddModule(root, names.norm_in, layers.Norm(norm, spec.pair_width));
  left_gate_ = linear(names.left_gate, spec.pair_width, width, Role::kProjectIn);
  left_ = linear(names.left, spec.pair_width, width, Role::kProjectIn);
  right_gate_ = linear(names.right_gate, spec.pair_width, width, Role::kProjectIn);
  right_ = linear(names.right, spec.pair_width, width, Role::kProjectIn);
  norm_out_ = AddModule(root, names.norm_out, layers.Norm(norm, width));
  out_ = linear(names.out, width, spec.pair_width, Role::kProjectOut);
  gate_ = linear(names.gate, spec.pair_width, spec.pair_width, Role::kProjectOut);
}

torch::Tensor TriangleProduct::Forward(const torch::Tensor& pairs) const {
  const torch::Tensor in = norm_in_->Forward(pairs);
  torch::Tensor left = Gated(*left_gate_, *left_, in);
  torch::Tensor right = Gated(*right_gate_, *right_, in);
  // A matrix product for each channel, [batch, width, i, k] times [batch, width, k, j].
  if (edges_ == TriangleEdges::kOutgoing) {
    left = left.permute({0, 3, 1, 2});
    right = right.permute({0, 3, 2, 1});
  } else {
    left = left.permute({0, 3, 2, 1});
    right = right.permute({0, 3, 1, 2});
  }
  torch::Tensor product = at::matmul(left, right);
  left.reset();
  right.reset();
  product = product.permute({0, 2, 3, 1}).contiguous();
  const torch::Tensor out = out_->Forward(norm_out_->Forward(product));
  return at::sigmoid(gate_->Forward(in)) * out;
}

}  // namespace gemini::trainer
