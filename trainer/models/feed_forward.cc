// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/feed_forward.h"

#include "trainer/models/activation.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
FeedForward::FeedForward(torch::nn::Module& root, const FeedNames& names,
                         const FeedForwardSpec& spec, int64_t width, MatrixLayout layout,
                         LayerSet& layers, bool is_expert)
    : activation_(spec.activation), joined_(spec.joined) {
  LinearShape into = {width, (joined_ ? 2 : 1) * spec.width, spec.bias, layout};
  if (joined_) into.sections = {spec.width, spec.width};
  const Role in = is_expert ? Role::kExpertIn : Role::kFeedIn;
  if (spec.gated && !joined_) {
    gate_ = AddModule(root, names.gate, layers.Linear(into, in));
  }
  in_ = AddModule(root, names.in, layers.Linear(into, in));
  out_ = AddModule(root, names.out,
                   layers.Linear({spec.width, width, spec.bias, layout},
                                 is_expert ? Role::kExpertOut : Role::kFeedOut));
}

torch::Tensor FeedForward::Forward(torch::Tensor in) const {
  torch::Tensor gate;
  if (gate_) gate = gate_->Forward(in);
  torch::Tensor fed = in_->Forward(in);
  in.reset();
  if (joined_) {
    const std::vector<torch::Tensor> halves = fed.chunk(2, /*dim=*/-1);
    gate = halves[0];
    fed = halves[1];
  }
  return out_->Forward(gate.defined() ? Activate(activation_, gate) * fed
                                      : Activate(activation_, fed));
}

std::vector<torch::Tensor> FeedForward::Parameters() const {
  std::vector<torch::Tensor> parameters;
  for (const std::shared_ptr<Layer>& layer : {gate_, in_, out_}) {
    if (!layer) continue;
    for (torch::Tensor& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace gemini::trainer
