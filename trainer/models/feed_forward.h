// SPDX-License-Identifier: Apache-2.0
// Computes a feed-forward part: two matrices with an activation between them, and a gate in some,
// which may be part of the first matrix.
// Thread: one at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

class FeedForward {
 public:
  // Registers the layers at `names` below `root`. `layout` is that of their matrices. `is_expert`:
  // a router chooses what it reads.
  FeedForward(torch::nn::Module& root, const FeedNames& names, const FeedForwardSpec& spec,
              int64_t width, MatrixLayout layout, LayerSet& layers, bool is_expert = false);
  // Returns a tensor [rows, width]. `in` has the same shape. It is released before the activation
  // takes memory, unless the caller holds it, too.
  torch::Tensor Forward(torch::Tensor in) const;
  // Returns its parameters, in the order of their first use.
  std::vector<torch::Tensor> Parameters() const;

 private:
  const Activation activation_;
  const bool joined_;
  std::shared_ptr<Layer> gate_;  // Null where it is not gated, or in_ has it, too.
  std::shared_ptr<Layer> in_;
  std::shared_ptr<Layer> out_;
};

}  // namespace gemini::trainer
