// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/distogram_head.h"

#include <utility>

#include "trainer/models/classifier_head.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {

DistogramHead::DistogramHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers) {
  bins_ = AddModule(root, spec.layers.classifier,
                    layers.Linear({.in = spec.pair_trunk->pair_width,
                                   .out = spec.pair_trunk->num_bins,
                                   .bias = spec.classifier->bias},
                                  Role::kProjectOut));
}

torch::Tensor DistogramHead::Logits(const HeadInput& input) const {
  // The pair is the first term: the sum lies as it does, which is contiguous.
  return bins_->Forward(input.hidden + input.hidden.transpose(1, 2));
}

BatchLoss DistogramHead::LossOf(HeadInput input, const Labels& labels,
                                const LossFactors& /*factors*/) const {
  const torch::Tensor logits = Logits(std::exchange(input, {}));
  return LossOfClasses(logits.flatten(0, 2), labels.values.flatten(), labels.count);
}

}  // namespace gemini::trainer
