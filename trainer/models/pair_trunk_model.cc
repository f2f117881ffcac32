// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/pair_trunk_model.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/OpMathType.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/distogram_head.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/pair_trunk.h"
#include "trainer/models/saved_state.h"
#include "trainer/models/token_head.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct UnreadState : torch::CustomClassHolder {
  std::vector<int64_t> sizes;
  torch::TensorOptions options;
};

// A zero of no dimension, whose backward gives its input a gradient of zeros. It does not keep the
// input.
class UnreadFunction : public torch::autograd::Function<UnreadFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& unread) {
    auto state = c10::make_intrusive<UnreadState>();
    state->sizes = unread.sizes().vec();
    state->options = unread.options();
    SaveState(context, state);
    return at::zeros({}, unread.options().dtype(at::toOpMathType(unread.scalar_type())));
  }

  static variable_list backward(AutogradContext* context, variable_list /*gradients*/) {
    const auto state = SavedState<UnreadState>(context);
    return {at::zeros(state->sizes, state->options)};
  }
};

// Returns for residues i and j the row of the table of i - j: [residues, residues], int64.
Tensor RelativeRows(int64_t residues, int64_t most, torch::Device device) {
  // Made before it is filled: arange itself would not take memory on the meta device.
  Tensor places = at::empty({residues}, torch::dtype(torch::kInt64).device(device));
  at::arange_out(places, 0, residues, 1);
  return (places.unsqueeze(1) - places).clamp_(-most, most).add_(most);
}

}  // namespace

PairTrunk::PairTrunk(const ModelSpec& spec, LayerSet& layers)
    : spec_(spec.pair_trunk.value()), reads_pair_(spec.task.kind == TaskKind::kDistogram) {
  const PairEmbeddingNames& names = spec_.embedding;
  const auto table = [&](const std::string& name, int64_t rows, int64_t width) {
    return AddModule(*this, name, layers.PositionEmbedding(rows, width));
  };
  residues_ = table(names.residues, spec.vocab_size, spec_.msa_width);
  first_sequence_ = table(names.first_sequence, spec.vocab_size, spec_.msa_width);
  left_ = table(names.left, spec.vocab_size, spec_.pair_width);
  right_ = table(names.right, spec.vocab_size, spec_.pair_width);
  relative_positions_ =
      table(names.relative_positions, 2 * spec_.relative_positions + 1, spec_.pair_width);
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    blocks_.push_back(AddModule(*this, absl::StrCat(spec.layers.blocks, ".", i),
                                std::make_shared<PairBlock>(spec_, layers)));
  }
  if (reads_pair_) {
    head_ = std::make_unique<DistogramHead>(*this, spec, layers);
  } else {
    head_ = std::make_unique<TokenHead>(*this, spec, layers, /*table=*/nullptr);
  }
}

Stream PairTrunk::Embed(const Batch& batch) {
  const Tensor& tokens = batch.inputs;
  TORCH_CHECK(tokens.dim() == 3 && tokens.size(1) == spec_.num_sequences, "residues of sizes ",
              tokens.sizes(), " where [batch, ", spec_.num_sequences, ", residues] is wanted");
  // One after the other: the order of first use is the order of the parameters.
  const Tensor first = tokens.select(/*dim=*/1, 0).contiguous();
  Tensor msa = residues_->Forward(tokens);
  msa = msa + first_sequence_->Forward(first).unsqueeze(1);
  Tensor pair = left_->Forward(first).unsqueeze(2);
  pair = pair + right_->Forward(first).unsqueeze(1);
  pair = pair + relative_positions_->Forward(
                    RelativeRows(first.size(1), spec_.relative_positions, tokens.device()));
  return {.hidden = std::move(msa), .pair = std::move(pair)};
}

BatchContext PairTrunk::ContextOf(const Tensor& hidden) const {
  BatchContext context;
  context.sequence = hidden.size(2);
  return context;
}

Tensor PairTrunk::Head(const Stream& last, const BatchContext& /*context*/) {
  return head_->Logits({.hidden = reads_pair_ ? last.pair : last.hidden});
}

BatchLoss PairTrunk::LossOf(Stream last, const BatchContext& /*context*/, const Labels& labels,
                            const LossFactors& factors) {
  if (!reads_pair_) std::swap(last.hidden, last.pair);
  // What is not read is released before the head takes memory, unless the caller keeps it.
  Tensor zero;
  if (at::GradMode::is_enabled() && last.hidden.requires_grad()) {
    zero = UnreadFunction::apply(last.hidden);
  }
  last.hidden.reset();
  BatchLoss loss = head_->LossOf({.hidden = std::move(last.pair)}, labels, factors);
  if (zero.defined()) loss.sum = loss.sum + zero;
  return loss;
}

}  // namespace gemini::trainer
