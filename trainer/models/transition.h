// SPDX-License-Identifier: Apache-2.0
// Computes the transition of a trunk: a norm, and two linear layers with a ReLU between them. It
// computes each vector's result from that vector alone.
// Thread: one at a time.
// Source: Jumper et al., Nature 596, 2021, supplementary methods: Algorithm 9 (of an alignment) and
//         15 (of pairs).
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

class Transition {
 public:
  // Registers the layers at `names` below `root`, in the order of first use. Between them a vector
  // has `factor` times `width` elements.
  Transition(torch::nn::Module& root, const TransitionNames& names, int64_t width, int64_t factor,
             const NormSpec& norm, LayerSet& layers);

  // Returns what is added to x [..., width], contiguous and of the parameters' dtype, in its shape
  // and dtype. Torch's exceptions pass through.
  torch::Tensor Forward(const torch::Tensor& x) const;

 private:
  std::shared_ptr<Layer> norm_;
  std::shared_ptr<Layer> input_;  // Null where there is nothing to do.
  std::shared_ptr<Layer> in_;
  std::shared_ptr<Layer> out_;
};

}  // namespace gemini::trainer
