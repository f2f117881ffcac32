// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/classifier_head.h"

#include <vector>

#include "ATen/OpMathType.h"
#include "ATen/core/Reduction.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/softplus.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/where.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kNoLabel = -1;
constexpr int64_t kMostChoices = 5;

// Returns how many of int64 labels [batch] are the first of the logits, and, where there are more
// than five, among the first five.
Tensor HitsOf(const Tensor& logits, const Tensor& labels) {
  std::vector<Tensor> hits = {logits.argmax(-1).eq(labels).sum()};
  if (logits.size(-1) > kMostChoices) {
    const Tensor choices = std::get<1>(logits.topk(kMostChoices));
    hits.push_back(choices.eq(labels.unsqueeze(-1)).sum());
  }
  return at::stack(hits);
}

}  // namespace

BatchLoss LossOfClasses(const Tensor& logits, const Tensor& classes, int64_t count) {
  const Tensor wide = logits.to(at::toOpMathType(logits.scalar_type()));
  BatchLoss loss = {.sum = {}, .count = count};
  loss.sum = at::cross_entropy_loss(wide, classes, /*weight=*/{}, at::Reduction::Sum, kNoLabel);
  if (!at::GradMode::is_enabled()) loss.hits = HitsOf(wide, classes);
  return loss;
}

ClassifierHead::ClassifierHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers,
                               int64_t site)
    : spec_(spec.classifier.value()),
      problem_(spec.task.problem),
      num_labels_(spec.task.num_labels),
      site_(site),
      whole_sequences_(layers.WholeSequences()) {
  const int64_t width = spec.embedding_width;
  if (spec_.input == ClassifierInput::kPooledFirstToken) {
    pooler_ =
        AddModule(root, spec.layers.pooler,
                  layers.Linear({.in = width, .out = width, .bias = true}, Role::kOfSequence));
  }
  classifier_ = AddModule(
      root, spec.layers.classifier,
      layers.Linear({.in = width, .out = num_labels_, .bias = spec_.bias}, Role::kOfSequence));
}

Tensor ClassifierHead::TokensRead(const HeadInput& input) const {
  const Tensor hidden = whole_sequences_ ? whole_sequences_->Forward(input.hidden) : input.hidden;
  const int64_t rows = hidden.size(0), sequence = hidden.size(1);
  const Tensor places = at::empty({rows}, torch::dtype(torch::kInt64));
  auto* const place = places.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    int64_t last = sequence - 1;
    if (input.documents != nullptr) {
      last = input.documents->lengths[static_cast<size_t>(row)].front() - 1;
    }
    place[row] = row * sequence + (spec_.input == ClassifierInput::kLastToken ? last : 0);
  }
  return hidden.reshape({rows * sequence, -1}).index_select(0, places.to(hidden.device()));
}

Tensor ClassifierHead::Logits(const HeadInput& input) const {
  Tensor read = TokensRead(input);
  if (pooler_) read = pooler_->Forward(read).tanh();
  return classifier_->Forward(DropOut(read, MaskOf(input.dropout, site_, spec_.dropout)));
}

BatchLoss ClassifierHead::LossOf(HeadInput input, const Labels& labels,
                                 const LossFactors& /*factors*/) const {
  const Tensor in_model = Logits(input);
  if (problem_ == ProblemType::kSingleLabel) {
    return LossOfClasses(in_model, labels.values, labels.count);
  }
  const Tensor logits = in_model.to(at::toOpMathType(in_model.scalar_type()));
  BatchLoss loss = {.sum = {}, .count = labels.count};
  const Tensor is_there = labels.values.eq(labels.values);
  const Tensor values = at::where(is_there, labels.values.to(logits.scalar_type()), 0.0);
  const bool has_several = problem_ == ProblemType::kMultiLabel;
  // The binary cross entropy of a label 0 is softplus(logit), and of 1 softplus(-logit).
  const Tensor each =
      has_several ? at::softplus(logits * (1 - 2 * values)) : (logits - values).square();
  loss.sum = at::where(is_there, each, 0.0).sum();
  if (has_several && !at::GradMode::is_enabled()) {
    loss.hits = logits.gt(0).eq(values.gt(0.5)).bitwise_and(is_there).sum().unsqueeze(0);
  }
  return loss;
}

}  // namespace gemini::trainer
