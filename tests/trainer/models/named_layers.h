// SPDX-License-Identifier: Apache-2.0
// Layers that a part of a model has registered, computed by plain Torch from their parameters: what
// a test holds the part against.
#pragma once
#include <string>

#include "torch/torch.h"

namespace gemini::trainer {

class NamedLayers {
 public:
  // Gives all parameters of `root`, which outlives this, random values.
  explicit NamedLayers(torch::nn::Module& root) : root_(root) {
    torch::manual_seed(1);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : root.parameters()) parameter.normal_(0, 0.5);
  }

  // Returns what the linear layer of this name makes of x, with its bias if it has one.
  torch::Tensor Linear(const torch::Tensor& x, const std::string& name) const {
    const auto parameters = root_.named_parameters();
    const torch::Tensor* const bias = parameters.find(name + ".bias");
    return torch::nn::functional::linear(x, parameters[name + ".weight"],
                                         bias != nullptr ? *bias : torch::Tensor());
  }
  // Returns what the layer norm of this name makes of x.
  torch::Tensor Norm(const torch::Tensor& x, const std::string& name) const {
    const auto parameters = root_.named_parameters();
    return torch::layer_norm(x, {x.size(-1)}, parameters[name + ".weight"],
                             parameters[name + ".bias"], /*eps=*/1e-5);
  }

 private:
  torch::nn::Module& root_;
};

}  // namespace gemini::trainer
