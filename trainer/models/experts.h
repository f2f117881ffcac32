// SPDX-License-Identifier: Apache-2.0
// The experts of a block, and the router that chooses among them. All experts run in each forward,
// in their order. One that has no tokens runs on no rows, and its gradient is then zero. So the
// order of operators does not depend on what the router chose, and a plan holds for every step.
// Bits:   a token's results are weighed and summed in the order of their weights, and rounded once.
// Thread: one at a time.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/feed_forward.h"

namespace gemini::trainer {

class Experts : public torch::nn::Module {
 public:
  // `spec` has experts.
  Experts(const ModelSpec& spec, LayerSet& layers);
  // Returns [rows, width] for rows of that shape.
  torch::Tensor Forward(const torch::Tensor& rows) const;

 private:
  const ExpertsSpec spec_;
  std::shared_ptr<Layer> router_;
  std::vector<FeedForward> experts_;
  std::optional<FeedForward> shared_;
  std::shared_ptr<Layer> shared_gate_;  // Null without a shared expert.
};

}  // namespace gemini::trainer
