// SPDX-License-Identifier: Apache-2.0
// Computes the head of a distogram: a linear layer that reads what a pair trunk knows about each
// pair of residues, in both orders, and says in which bin of distances the pair is.
// Source: Jumper et al., Nature 596, 2021, supplementary methods 1.9.8.
#pragma once
#include <memory>

#include "torch/nn/module.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/task_head.h"

namespace gemini::trainer {

// The hidden tensor that it takes is the pair, [batch, residues, residues, pair width]. Its logits
// are [batch, residues, residues, bins], the same for (i, j) and (j, i).
class DistogramHead : public TaskHead {
 public:
  // Asks `layers` for the layer and registers it below `root`, by the spec's names. The spec has a
  // pair trunk.
  DistogramHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers);
  torch::Tensor Logits(const HeadInput& input) const override;
  BatchLoss LossOf(HeadInput input, const Labels& labels,
                   const LossFactors& factors) const override;

 private:
  std::shared_ptr<Layer> bins_;
};

}  // namespace gemini::trainer
