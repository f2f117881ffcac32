// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/head_loss.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/OpMathType.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/amax.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"
#include "trainer/models/vocabulary_table.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Returns the products of whole hidden states, where those given are of a part of the width.
Tensor Added(Tensor products, const HeadOptions& options) {
  return options.add ? options.add(std::move(products)) : products;
}

// Scales and caps logits, in place as far as that goes: nothing else has them, and no backward
// reads what is overwritten.
Tensor Shaped(Tensor logits, const HeadOptions& options) {
  if (options.logit_scale != 1) logits.mul_(options.logit_scale);
  if (options.soft_cap == 0) return logits;
  return logits.div_(options.soft_cap).tanh_() * options.soft_cap;
}

// The logarithm of the sum of the exponentials of each row of x [rows, columns]: [rows, 1].
Tensor LogSumExp(const Tensor& x) {
  const Tensor largest = at::amax(x, /*dim=*/1, /*keepdim=*/true);
  return (x - largest).exp_().sum(/*dim=*/1, /*keepdim=*/true).log_().add_(largest);
}

// The type of logits and sums.
torch::ScalarType SumTypeOf(const Tensor& x) { return at::toOpMathType(x.scalar_type()); }

// Adds a b to `sum`, which is of the sums' type.
void AddProduct(const Tensor& a, const Tensor& b, Tensor sum) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a, b);
  } else {
    sum.add_(at::mm(a, b));
  }
}

void CheckBias(const Tensor& bias, const HeadOptions& options) {
  if (!bias.defined()) return;
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == options.cut.rows, "a bias of ", bias.sizes(),
              " for a table of ", options.cut.rows, " rows");
  TORCH_CHECK(!options.add, "a bias where ranks have parts of the width");
}

// What is computed for one piece of tokens and one of the vocabulary. `bias` may be undefined.
class Pieces {
 public:
  Pieces(const Tensor& hidden, const Tensor& labels, absl::Span<const Tensor> blocks,
         const Tensor& bias, const HeadOptions& options)
      : hidden_(hidden), labels_(labels), blocks_(blocks), bias_(bias), options_(options) {}

  int64_t num_token_pieces() const {
    const int64_t size = options_.cut.tokens_of_piece;
    return (hidden_.size(0) + size - 1) / size;
  }
  int64_t num_pieces() const { return options_.cut.num_pieces(); }

  // The rows of [tokens, ..] that belong to a piece of tokens.
  Tensor OfTokens(const Tensor& x, int64_t tokens) const {
    const int64_t size = options_.cut.tokens_of_piece;
    return x.narrow(0, tokens * size, std::min(size, x.size(0) - tokens * size));
  }
  // The rows of a block's tensor that belong to piece `piece` of the vocabulary.
  Tensor OfPiece(const Tensor& block, int64_t piece) const {
    const int64_t first = piece % options_.cut.pieces_of_block * options_.cut.rows_of_piece;
    return block.narrow(0, first, std::min(options_.cut.rows_of_piece, block.size(0) - first));
  }
  // The elements of [rows of the table] that belong to piece `piece` of the vocabulary.
  Tensor OfBias(const Tensor& bias, int64_t piece) const {
    const int64_t first = piece * options_.cut.rows_of_piece;
    return bias.narrow(0, first, std::min(options_.cut.rows_of_piece, options_.cut.rows - first));
  }
  Tensor Table(int64_t piece) const {
    return OfPiece(blocks_[static_cast<size_t>(piece / options_.cut.pieces_of_block)], piece);
  }

  // Of the sums' type, [tokens of the piece, rows of the piece].
  Tensor Logits(int64_t tokens, int64_t piece) const {
    const Tensor hidden = OfTokens(hidden_, tokens), table = Table(piece).t();
    return Shaped(bias_.defined() ? at::addmm(OfBias(bias_, piece), hidden, table)
                                  : Added(at::mm(hidden, table), options_),
                  options_)
        .to(SumTypeOf(hidden_));
  }

  // Makes room for the sums of all tokens.
  void BeginSums() {
    const auto options = hidden_.options().dtype(SumTypeOf(hidden_));
    partial_sums_ = at::empty({hidden_.size(0), num_pieces()}, options);
    targets_ = at::zeros({hidden_.size(0), 1}, options);
  }
  // Adds the logits to the sums of exponentials and to the logits of the labels.
  void AddToSums(int64_t tokens, int64_t piece, const Tensor& logits) {
    OfTokens(partial_sums_, tokens).narrow(1, piece, 1).copy_(LogSumExp(logits));
    const Place place = PlaceOf(tokens, piece);
    OfTokens(targets_, tokens).add_(at::where(place.is_here, logits.gather(1, place.column), 0.0));
  }

  // The logarithm of all logits' sum of exponentials: [tokens of the piece, 1]. All pieces of the
  // vocabulary have been added to the sums.
  Tensor Sums(int64_t tokens) {
    Tensor sums = LogSumExp(OfTokens(partial_sums_, tokens));
    if (!options_.merge) return sums;
    Tensor targets = OfTokens(targets_, tokens);
    const Tensor merged = options_.merge(at::stack({sums.squeeze(1), targets.squeeze(1)}));
    targets.copy_(merged[1].unsqueeze(1));
    return merged[0].unsqueeze(1);
  }

  // Cross entropies of the tokens of a piece: [tokens of the piece, 1].
  Tensor Losses(int64_t tokens, const Tensor& sums) const {
    return at::where(OfTokens(labels_, tokens).ge(0).unsqueeze(1),
                     sums - OfTokens(targets_, tokens), 0.0);
  }

  // Returns `gradient` times the derivative of the losses by what the matrix product gave, in the
  // hidden states' type. Overwrites `logits`.
  Tensor Derivative(int64_t tokens, int64_t piece, Tensor logits, const Tensor& sums,
                    double gradient) const {
    Tensor slope;
    if (options_.soft_cap != 0) {
      slope = (logits / options_.soft_cap).square_().neg_().add_(1);
    }
    logits.sub_(sums).exp_();
    SubtractOneAtLabels(tokens, piece, logits);
    logits.mul_(
        OfTokens(labels_, tokens).ge(0).unsqueeze(1).to(logits.scalar_type()).mul_(gradient));
    if (slope.defined()) logits.mul_(slope);
    if (options_.logit_scale != 1) logits.mul_(options_.logit_scale);
    return logits.to(hidden_.scalar_type());
  }

  // Adds what a derivative gives to the gradients of the hidden states, of the piece's rows of the
  // table, and of the whole bias. All are of the sums' type, or undefined where none is wanted.
  void AddToGradients(int64_t tokens, int64_t piece, Tensor derivative,
                      const Tensor& hidden_gradient, const Tensor& piece_gradient,
                      const Tensor& bias_gradient) const {
    if (bias_gradient.defined()) {
      OfBias(bias_gradient, piece)
          .add_(derivative.sum(/*dim=*/0, /*keepdim=*/false, bias_gradient.scalar_type()));
    }
    if (options_.gather) derivative = options_.gather(std::move(derivative));
    if (hidden_gradient.defined()) {
      AddProduct(derivative, Table(piece), OfTokens(hidden_gradient, tokens));
    }
    if (piece_gradient.defined()) {
      AddProduct(derivative.t(), OfTokens(hidden_, tokens), piece_gradient);
    }
  }

 private:
  // Where the labels of a piece of tokens are in a piece of the vocabulary, both [tokens, 1].
  struct Place {
    Tensor column;   // Any, where it is not here.
    Tensor is_here;  // bool.
  };
  Place PlaceOf(int64_t tokens, int64_t piece) const {
    const int64_t first = piece * options_.cut.rows_of_piece;
    const int64_t rows = std::min(options_.cut.rows_of_piece, options_.cut.rows - first);
    const Tensor at = OfTokens(labels_, tokens).unsqueeze(1) - (options_.first_row + first);
    return {at.clamp(0, rows - 1), at.ge(0).bitwise_and_(at.lt(rows))};
  }

  // Subtracts one at each token's label, if that is in this piece of the vocabulary.
  void SubtractOneAtLabels(int64_t tokens, int64_t piece, Tensor& logits) const {
    const Place place = PlaceOf(tokens, piece);
    if (options_.on_cpu) {
      logits.scatter_add_(1, place.column, place.is_here.to(logits.scalar_type()).neg_());
      return;
    }
    // A scatter sorts, where a GPU's algorithms are to be deterministic.
    const Tensor columns = at::arange(logits.size(1), labels_.options()).expand(logits.sizes());
    logits.add_(columns.eq(place.column).bitwise_and_(place.is_here), /*alpha=*/-1);
  }

  const Tensor hidden_;
  const Tensor labels_;
  const absl::Span<const Tensor> blocks_;
  const Tensor bias_;
  const HeadOptions options_;
  Tensor partial_sums_;  // [tokens, pieces].
  Tensor targets_;       // The logits of the labels, [tokens, 1].
};

// `like` may be undefined where nothing is wanted.
Tensor Zeros(const Tensor& like, bool wanted) {
  return wanted ? at::zeros(like.sizes(), like.options().dtype(SumTypeOf(like))) : Tensor();
}

Tensor InTypeOf(const Tensor& like, const Tensor& gradient) {
  return gradient.defined() ? gradient.to(like.scalar_type()) : gradient;
}

// What forward leaves for backward.
struct HeadState : torch::CustomClassHolder {
  HeadOptions options;
  double gradient = 0;  // Of the sum, as foretold.
  bool learns_hidden = false;
  bool learns_bias = false;
  bool is_computed = false;  // The only block is no leaf.
  // Where there is one block, forward computes these, times `gradient`.
  Tensor hidden_gradient;
  Tensor block_gradient;
  Tensor bias_gradient;
  bool is_spent = false;
};

// Goes through all of the vocabulary for one piece of tokens after the other, and returns the sum
// of their losses. Adds to the gradients of `state`, unless it is null.
Tensor SumByTokens(Pieces& pieces, HeadState* state) {
  pieces.BeginSums();
  variable_list losses;
  for (int64_t tokens = 0; tokens < pieces.num_token_pieces(); ++tokens) {
    variable_list logits;
    for (int64_t piece = 0; piece < pieces.num_pieces(); ++piece) {
      Tensor of_piece = pieces.Logits(tokens, piece);
      pieces.AddToSums(tokens, piece, of_piece);
      if (state != nullptr) logits.push_back(std::move(of_piece));
    }
    const Tensor sums = pieces.Sums(tokens);
    losses.push_back(pieces.Losses(tokens, sums));
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto piece = static_cast<int64_t>(i);
      const Tensor derivative =
          pieces.Derivative(tokens, piece, std::exchange(logits[i], {}), sums, state->gradient);
      pieces.AddToGradients(
          tokens, piece, derivative, state->hidden_gradient,
          state->block_gradient.defined() ? pieces.OfPiece(state->block_gradient, piece) : Tensor(),
          state->bias_gradient);
    }
  }
  return at::cat(losses).sum();
}

// Goes through all tokens for one piece of the vocabulary after the other, so that each block is
// needed once. `sums` gets the logarithms of sums of exponentials, by pieces of tokens.
Tensor SumByBlocks(Pieces& pieces, variable_list& sums) {
  pieces.BeginSums();
  for (int64_t piece = 0; piece < pieces.num_pieces(); ++piece) {
    for (int64_t tokens = 0; tokens < pieces.num_token_pieces(); ++tokens) {
      pieces.AddToSums(tokens, piece, pieces.Logits(tokens, piece));
    }
  }
  variable_list losses;
  for (int64_t tokens = 0; tokens < pieces.num_token_pieces(); ++tokens) {
    sums.push_back(pieces.Sums(tokens));
    losses.push_back(pieces.Losses(tokens, sums.back()));
  }
  return at::cat(losses).sum();
}

// What forward saves beside the blocks where there are several.
struct SavedTensors {
  Tensor hidden;
  Tensor labels;
  Tensor bias;
  Tensor all_sums;
};

// Gives the blocks their gradients, one after the other, and leaves those of the hidden states and
// the bias in `state`.
void ComputeAgain(const variable_list& blocks, const SavedTensors& saved, double gradient,
                  HeadState& state) {
  const Tensor& hidden = saved.hidden;
  const Pieces pieces(hidden, saved.labels, blocks, saved.bias, state.options);
  const Tensor hidden_gradient = Zeros(hidden, state.learns_hidden);
  const Tensor bias_gradient = Zeros(saved.bias, state.learns_bias);
  int64_t piece = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    Tensor block_gradient;
    if (blocks[b].requires_grad()) block_gradient = at::empty_like(blocks[b]);
    const int64_t end = std::min(piece + state.options.cut.pieces_of_block, pieces.num_pieces());
    for (; piece < end; ++piece) {
      Tensor piece_gradient;
      if (block_gradient.defined()) {
        piece_gradient = pieces.OfPiece(block_gradient, piece);
        const bool sums_in_place = piece_gradient.scalar_type() == SumTypeOf(hidden);
        piece_gradient = sums_in_place ? piece_gradient.zero_() : Zeros(piece_gradient, true);
      }
      for (int64_t tokens = 0; tokens < pieces.num_token_pieces(); ++tokens) {
        const Tensor derivative =
            pieces.Derivative(tokens, piece, pieces.Logits(tokens, piece),
                              pieces.OfTokens(saved.all_sums, tokens), gradient);
        pieces.AddToGradients(tokens, piece, derivative, hidden_gradient, piece_gradient,
                              bias_gradient);
      }
      if (block_gradient.defined() && block_gradient.scalar_type() != SumTypeOf(hidden)) {
        pieces.OfPiece(block_gradient, piece).copy_(piece_gradient);
      }
    }
    if (block_gradient.defined()) AddToGradient(blocks[b], std::move(block_gradient));
  }
  state.hidden_gradient = InTypeOf(hidden, hidden_gradient);
  state.bias_gradient = InTypeOf(saved.bias, bias_gradient);
}

// `anchor` requires grad, so that the sum does: blocks that are leaves are no inputs of this
// function, and get their gradients in its backward. `computed` is the only block, where that is no
// leaf.
class HeadLossFunction : public torch::autograd::Function<HeadLossFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& hidden,
                          const Variable& /*anchor*/, const Variable& labels,
                          const std::optional<Variable>& computed,
                          const std::optional<Variable>& given_bias, const variable_list& blocks,
                          const HeadOptions& options, double gradient) {
    const Variable bias = given_bias.value_or(Variable());
    auto state = c10::make_intrusive<HeadState>();
    state->options = options;
    state->gradient = gradient;
    state->learns_hidden = hidden.requires_grad();
    state->learns_bias = bias.defined() && bias.requires_grad();
    state->is_computed = computed.has_value();
    SaveState(context, state);
    Pieces pieces(hidden, labels, blocks, bias, options);
    variable_list saved;
    if (!state->is_computed) saved = blocks;  // Of a computed one the value is not needed again.
    Variable sum;
    if (blocks.size() == 1) {
      state->hidden_gradient = Zeros(hidden, state->learns_hidden);
      state->block_gradient = Zeros(blocks[0], blocks[0].requires_grad());
      state->bias_gradient = Zeros(bias, state->learns_bias);
      sum = SumByTokens(pieces, state.get());
      state->hidden_gradient = InTypeOf(hidden, state->hidden_gradient);
      state->block_gradient = InTypeOf(hidden, state->block_gradient);
      state->bias_gradient = InTypeOf(hidden, state->bias_gradient);
    } else {
      variable_list sums;
      sum = SumByBlocks(pieces, sums);
      saved.insert(saved.end(), {hidden, labels, bias, at::cat(sums)});
    }
    context->save_for_backward(std::move(saved));
    return sum;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "the head's loss has no second derivative");
    const auto state = SavedState<HeadState>(context);
    TORCH_CHECK(!std::exchange(state->is_spent, true),
                "a second backward through the head's loss, whose gradients are gone");
    // On the meta device nobody knows it.
    const double gradient = gradients[0].is_meta() ? state->gradient : gradients[0].item<double>();
    variable_list saved = context->get_saved_variables();
    Variable computed_gradient;
    if (saved.size() > 1) {
      const variable_list blocks(saved.begin(), saved.end() - 4);
      ComputeAgain(blocks, {saved.end()[-4], saved.end()[-3], saved.end()[-2], saved.end()[-1]},
                   gradient, *state);
    } else {
      for (Tensor* const computed :
           {&state->hidden_gradient, &state->block_gradient, &state->bias_gradient}) {
        if (gradient != state->gradient && computed->defined()) {
          computed->mul_(gradient / state->gradient);
        }
      }
      if (state->is_computed) {
        computed_gradient = std::move(state->block_gradient);
      } else if (state->block_gradient.defined()) {
        AddToGradient(saved[0], std::move(state->block_gradient));
      }
    }
    return {std::move(state->hidden_gradient), Variable(), Variable(), computed_gradient,
            std::move(state->bias_gradient),   Variable(), Variable(), Variable()};
  }
};

}  // namespace

torch::Tensor HeadLogits(const torch::Tensor& hidden, absl::Span<const torch::Tensor> blocks,
                         const HeadOptions& options, const torch::Tensor& bias) {
  CheckBias(bias, options);
  variable_list logits;
  int64_t row = 0;
  for (const Tensor& block : blocks) {
    std::optional<Tensor> of_block;
    if (bias.defined()) of_block = bias.narrow(0, row, block.size(0));
    row += block.size(0);
    logits.push_back(Added(at::linear(hidden, block, of_block), options));
  }
  return Shaped(logits.size() == 1 ? std::move(logits[0]) : at::cat(logits, /*dim=*/-1), options);
}

torch::Tensor HeadLoss(const torch::Tensor& hidden, const torch::Tensor& labels,
                       absl::Span<const torch::Tensor> blocks, const HeadOptions& options,
                       double gradient, const torch::Tensor& bias) {
  CheckBias(bias, options);
  const auto learns = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  if (!at::GradMode::is_enabled() ||
      !(learns(hidden) || learns(bias) || std::ranges::any_of(blocks, learns))) {
    const at::NoGradGuard no_graph;
    Pieces pieces(hidden, labels, blocks, bias, options);
    if (blocks.size() == 1) return SumByTokens(pieces, /*state=*/nullptr);
    variable_list sums;
    return SumByBlocks(pieces, sums);
  }
  TORCH_CHECK(gradient != 0, "the head's loss was foretold no gradient");
  std::optional<Tensor> computed;
  for (const Tensor& block : blocks) {
    if (block.is_leaf()) continue;
    TORCH_CHECK(blocks.size() == 1, "a head of several blocks that are no parameters");
    computed = block;
  }
  const Tensor anchor = at::empty({0}, torch::dtype(torch::kFloat32)).requires_grad_();
  return HeadLossFunction::apply(hidden, anchor, labels, computed,
                                 bias.defined() ? std::optional(bias) : std::nullopt,
                                 variable_list(blocks.begin(), blocks.end()), options,
                                 // As backward will read it from a tensor.
                                 static_cast<double>(static_cast<float>(gradient)));
}

}  // namespace gemini::trainer
