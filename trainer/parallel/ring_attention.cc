// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/ring_attention.h"

#include <limits>
#include <memory>
#include <optional>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/full.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr char kKeys[] = "ring keys";
constexpr char kGradients[] = "ring gradients";
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct SavedRing : torch::CustomClassHolder {
  SavedRing(const RowAttentionOptions& the_options, const RankLine& the_line, bool is_zigzag)
      : options(the_options), line(the_line), zigzag(is_zigzag) {}
  const RowAttentionOptions options;
  const RankLine line;
  const bool zigzag;

  std::vector<TokenSlice> SlicesOf(int64_t place, int64_t tokens) const {
    return SlicesOfPart({place, line.size()}, zigzag, tokens * line.size());
  }
};

// Calls `compute` with the keys and values of each rank, [2, batch, KV heads, tokens, head size],
// and its place, from this rank's own ones backwards. The next ones come meanwhile.
template <typename Compute>
void ForEachHop(const Tensor& key, const Tensor& value, const RankLine& line,
                const Compute& compute) {
  Tensor held = at::stack({key, value});
  for (int64_t hop = 0; hop < line.size(); ++hop) {
    std::optional<TensorShift> next;
    if (hop + 1 < line.size()) next.emplace(held, line, kKeys);
    compute(held, (line.place() + line.size() - hop) % line.size());
    if (next.has_value()) held = next->Await();
  }
}

// What rows have of the keys that they have met: the largest score, the sum of the scores'
// exponentials, and that of values with these weights. Both are divided by the largest score's
// exponential.
struct RowSums {
  RowSums(const Tensor& query, const torch::TensorOptions& options)
      : largest(
            at::full({query.size(0), query.size(1), query.size(2), 1}, kMinusInfinity, options)),
        exponentials(at::zeros(largest.sizes(), options)),
        values(at::zeros(query.sizes(), options)) {}
  const Tensor largest;
  const Tensor exponentials;
  const Tensor values;

  void Add(const AttentionPieces& pieces, const AttentionPiece& piece, const Tensor& query,
           const Tensor& held) {
    Tensor weights = pieces.Scores(query, held[0], piece);
    const Tensor before = pieces.RowsOf(largest, piece);
    const Tensor now = before.maximum(weights.amax(/*dim=*/-1, /*keepdim=*/true));
    // It is minus infinity for a row that has met no key yet, and cannot be subtracted from itself.
    const Tensor subtracted = now.masked_fill(now.isinf(), 0);
    const Tensor factor = (before - subtracted).exp_();
    weights.sub_(subtracted).exp_();
    pieces.RowsOf(exponentials, piece).mul_(factor).add_(weights.sum(/*dim=*/-1, /*keepdim=*/true));
    pieces.RowsOf(values, piece).mul_(factor).add_(pieces.SumOfValues(weights, held[1], piece));
    before.copy_(now);
  }
};

class RingAttentionFunction : public torch::autograd::Function<RingAttentionFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const RowAttentionOptions& options,
                          const RankLine& line, bool zigzag) {
    const auto ring = c10::make_intrusive<SavedRing>(options, line, zigzag);
    const int64_t tokens = query.size(2);
    const AttentionPieces pieces(query, key, options, tokens * line.size());
    const auto sums = query.options().dtype(TypeOfSums(query));
    RowSums rows(query, sums);
    ForEachHop(key, value, line, [&](const Tensor& held, int64_t place) {
      pieces.ForEach(ring->SlicesOf(line.place(), tokens), ring->SlicesOf(place, tokens),
                     [&](const AttentionPiece& piece) { rows.Add(pieces, piece, query, held); });
    });
    Tensor out = rows.values.div_(rows.exponentials).to(query.scalar_type());
    const Tensor log_sums = rows.exponentials.log_().add_(rows.largest);
    SaveState(context, ring);
    context->save_for_backward({query, key, value, out, log_sums});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "RingAttention has no second derivative");
    const variable_list saved = context->get_saved_variables();
    AttentionTensors of = {saved[0], saved[1], saved[2], saved[3], saved[4]};
    const auto ring = SavedState<SavedRing>(context);
    const RankLine& line = ring->line;
    const int64_t tokens = of.query.size(2);
    const AttentionPieces pieces(of.query, of.key, ring->options, tokens * line.size());
    const auto sums = of.key.options().dtype(TypeOfSums(of.key));
    const Tensor query_grad = at::zeros(of.query.sizes(), sums);
    // What the rank before has added to the gradients of the keys that come from it.
    std::optional<TensorShift> added;
    const Tensor own_key = of.key, own_value = of.value;
    ForEachHop(own_key, own_value, line, [&](const Tensor& held, int64_t place) {
      of.key = held[0];
      of.value = held[1];
      const Tensor gradients = at::zeros(held.sizes(), sums);
      pieces.ForEach(ring->SlicesOf(line.place(), tokens), ring->SlicesOf(place, tokens),
                     [&](const AttentionPiece& piece) {
                       const PieceGradients some = pieces.GradientsOf(of, output_grads[0], piece);
                       pieces.RowsOf(query_grad, piece).add_(some.query);
                       AttentionPieces::KeysOf(gradients[0], piece).add_(some.key);
                       AttentionPieces::KeysOf(gradients[1], piece).add_(some.value);
                     });
      if (added.has_value()) gradients.add_(added->Await());
      added.emplace(gradients, line, kGradients);
    });
    const Tensor own = added->Await().to(own_key.scalar_type());
    return {
        query_grad.to(of.query.scalar_type()), own[0], own[1], Variable(), Variable(), Variable()};
  }
};

}  // namespace

std::vector<TokenSlice> SlicesOfPart(const EqualPart& part, bool zigzag, int64_t sequence) {
  const int64_t num_slices = zigzag ? 2 * part.count : part.count;
  const int64_t size = sequence / num_slices;
  std::vector<TokenSlice> slices = {{0, part.index * size, size}};
  if (zigzag) slices.push_back({size, (num_slices - 1 - part.index) * size, size});
  return slices;
}

Tensor RingAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                     const RowAttentionOptions& options, const RankLine& line, bool zigzag) {
  TORCH_CHECK_NOT_IMPLEMENTED(options.documents == nullptr, "a ring of rows with documents");
  TORCH_CHECK_NOT_IMPLEMENTED(options.causal, "a ring of attention that is not causal");
  return RingAttentionFunction::apply(query, key, value, options, line, zigzag);
}

}  // namespace gemini::trainer
