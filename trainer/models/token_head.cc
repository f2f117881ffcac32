// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/token_head.h"

#include <utility>

#include "ATen/ops/constant_pad_nd.h"
#include "trainer/models/activation.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kNoLabel = -1;  // It counts for nothing.

// Returns for each token the label of the next one. The labels are padded and not the hidden states
// cut: that would copy them.
torch::Tensor OfNextTokens(const torch::Tensor& labels) {
  return at::constant_pad_nd(labels, {0, 1}, kNoLabel).slice(/*dim=*/-1, /*start=*/1).contiguous();
}

}  // namespace

TokenHead::TokenHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers,
                     const std::shared_ptr<VocabularyTable>& table)
    : is_causal_(spec.task.kind == TaskKind::kCausal), activation_(spec.head_transform) {
  head_ = layers.Head({.vocabulary = spec.vocab_size,
                       .width = spec.embedding_width,
                       .bias = spec.head_bias,
                       .logit_scale = spec.logit_scale,
                       .logit_soft_cap = spec.logit_soft_cap},
                      spec.tied_head ? table : nullptr);
  const LayerNames& names = spec.layers;
  // It comes first, as the transform may lie below it.
  if (!spec.tied_head || spec.head_bias) AddModule(root, names.head, head_);
  if (!activation_.has_value()) return;
  const int64_t width = spec.embedding_width;
  transform_ =
      AddModule(root, names.head_transform,
                layers.Linear({.in = width, .out = width, .bias = true}, Role::kProjectOut));
  norm_ = AddModule(root, names.head_norm, layers.Norm(spec.norm, width));
}

torch::Tensor TokenHead::Transform(torch::Tensor hidden) const {
  if (!transform_) return hidden;
  hidden = transform_->Forward(hidden);
  return norm_->Forward(Activate(*activation_, hidden));
}

torch::Tensor TokenHead::Logits(const HeadInput& input) const {
  return head_->Logits(Transform(input.hidden));
}

BatchLoss TokenHead::LossOf(HeadInput input, const Labels& labels,
                            const LossFactors& factors) const {
  const torch::Tensor predicted = is_causal_ ? OfNextTokens(labels.values) : labels.values;
  BatchLoss loss = {.sum = {}, .count = labels.count};
  loss.sum = head_->SumOfLosses(Transform(std::move(input.hidden)), predicted, factors.label);
  return loss;
}

}  // namespace gemini::trainer
