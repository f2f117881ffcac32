// SPDX-License-Identifier: Apache-2.0
// Computes the experts of a block, and the router that chooses among them. Planned, all experts run
// in each forward, in their order. One that has no tokens runs on no rows, and its gradient is then
// zero. So the order of operators does not depend on what the router chose, and a plan holds for
// every step. Routed, which is for evaluations, only those run that have tokens.
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
#include "trainer/models/batch_context.h"
#include "trainer/models/feed_forward.h"

namespace gemini::trainer {

class Experts : public torch::nn::Module {
 public:
  // `spec` has experts.
  Experts(const ModelSpec& spec, LayerSet& layers);
  // Returns [rows, width] for rows of that shape. Adds what the router did with them to
  // `router_sums` (stream.h), if the loss includes the routers'.
  torch::Tensor Forward(const torch::Tensor& rows, const ExpertRouting& routing,
                        torch::Tensor& router_sums) const;

 private:
  const ExpertsSpec spec_;
  std::shared_ptr<Layer> router_;
  // Each of these is null if the set of layers has nothing to do there.
  std::shared_ptr<Layer> router_output_;
  std::shared_ptr<Layer> input_;  // Of all experts.
  std::shared_ptr<Layer> weights_;
  std::shared_ptr<Layer> output_;
  std::vector<FeedForward> experts_;
  std::optional<FeedForward> shared_;
  std::shared_ptr<Layer> shared_gate_;  // Null without a shared expert.
};

// Returns the routers' load-balancing loss, fp32 [], for the sums over all blocks (stream.h):
// E sum_e f_e P_e, where E is the number of experts, f_e the part of the tokens that chose expert
// e, and P_e its mean probability. It is `spec.chosen` where all experts are chosen alike.
// Source: Fedus et al., "Switch Transformers", arXiv:2101.03961, equations (4) to (6). As in
//         transformers, f and P are means over the tokens in all blocks.
torch::Tensor RouterLoss(const torch::Tensor& router_sums, const ExpertsSpec& spec);

}  // namespace gemini::trainer
