// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/transition.h"

#include "ATen/ops/relu.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {

Transition::Transition(torch::nn::Module& root, const TransitionNames& names, int64_t width,
                       int64_t factor, const NormSpec& norm, LayerSet& layers) {
  const int64_t inner = factor * width;
  norm_ = AddModule(root, names.norm, layers.Norm(norm, width));
  input_ = layers.SharedInput();
  in_ = AddModule(root, names.in,
                  layers.Linear({.in = width, .out = inner, .bias = true}, Role::kFeedIn));
  out_ = AddModule(root, names.out,
                   layers.Linear({.in = inner, .out = width, .bias = true}, Role::kFeedOut));
}

torch::Tensor Transition::Forward(const torch::Tensor& x) const {
  torch::Tensor in = norm_->Forward(x);
  if (input_) in = input_->Forward(in);
  return out_->Forward(at::relu(in_->Forward(in)));
}

}  // namespace gemini::trainer
