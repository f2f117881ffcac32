// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/row_attention.h"

#include <algorithm>
#include <limits>

#include "ATen/OpMathType.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/bmm.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/functional/function_ref.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kRows = 128;

// Rows [row, row + rows) of sequence `batch` see keys from `key` on, to the last row.
struct Piece {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t key = 0;
  int64_t keys() const { return row + rows - key; }
};

// The type of scores and sums.
torch::ScalarType SumTypeOf(const Tensor& x) { return at::toOpMathType(x.scalar_type()); }

// Returns a b, of matrices of one type: products of 16 bits are fp32, not rounded before they are
// scaled.
Tensor Product(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == SumTypeOf(a)) return at::bmm(a, b);
  if (a.is_cuda()) return at::bmm(a, b, torch::kFloat32);
  return at::bmm(a.to(torch::kFloat32), b.to(torch::kFloat32));
}

// What all pieces have in common.
class Pieces {
 public:
  Pieces(const Tensor& query, const Tensor& key, const RowAttentionOptions& options)
      : options_(options),
        batch_(query.size(0)),
        heads_(query.size(1)),
        sequence_(query.size(2)),
        kv_heads_(key.size(1)),
        head_size_(query.size(3)) {}

  void ForEach(absl::FunctionRef<void(const Piece&)> visit) const {
    for (int64_t batch = 0; batch < batch_; ++batch) {
      for (int64_t row = 0; row < sequence_; row += kRows) {
        const int64_t key =
            options_.window == 0 ? 0 : std::max<int64_t>(row - options_.window + 1, 0);
        visit({batch, row, std::min(kRows, sequence_ - row), key});
      }
    }
  }

  // A piece's rows of x [batch, heads, sequence, ...], as [KV heads, heads of each, rows, ...].
  Tensor RowsOf(const Tensor& x, const Piece& piece) const {
    return x[piece.batch].unflatten(0, {kv_heads_, -1}).narrow(/*dim=*/2, piece.row, piece.rows);
  }
  // The same with the rows of all heads that share a KV head behind each other, as a matrix each.
  Tensor MatricesOf(const Tensor& x, const Piece& piece) const {
    return RowsOf(x, piece).reshape({kv_heads_, -1, head_size_});
  }
  // A piece's keys or values of x [batch, KV heads, sequence, head size].
  static Tensor KeysOf(const Tensor& x, const Piece& piece) {
    return x[piece.batch].narrow(/*dim=*/1, piece.key, piece.keys());
  }

  // Returns scores [KV heads, heads of each, rows, keys]: scaled, not capped, not masked.
  Tensor Scores(const Tensor& query, const Tensor& key, const Piece& piece) const {
    Tensor scores = Product(MatricesOf(query, piece), KeysOf(key, piece).transpose(1, 2));
    scores.mul_(options_.scale);
    return scores.view({kv_heads_, -1, piece.rows, piece.keys()});
  }

  // Caps the scores in place. Returns tanh(score / cap), undefined without a cap.
  Tensor Cap(Tensor& scores) const {
    if (options_.soft_cap == 0) return {};
    Tensor tanh = scores.div_(options_.soft_cap).tanh_();
    scores = tanh * options_.soft_cap;
    return tanh;
  }

  // Sets the scores to minus infinity that a row does not see.
  void Mask(Tensor& scores, const Piece& piece) const {
    const Tensor all = at::ones({piece.rows, piece.keys()}, scores.options().dtype(torch::kBool));
    const int64_t own = piece.row - piece.key;  // The key of the first row.
    scores.masked_fill_(all.triu(own + 1), -std::numeric_limits<double>::infinity());
    if (options_.window == 0) return;
    scores.masked_fill_(all.tril(own - options_.window), -std::numeric_limits<double>::infinity());
  }

  // Returns what dropout multiplies each of a piece's weights by; undefined without dropout.
  Tensor DropoutFactors(const Tensor& weights, const Piece& piece) const {
    if (options_.dropout.probability == 0) return {};
    const int64_t all_heads = options_.all_heads == 0 ? heads_ : options_.all_heads;
    // Factors are fp32 also where scores are fp64.
    Tensor factors = at::empty_like(weights, torch::kFloat32);
    const int64_t first_head =
        (options_.first_sequence + piece.batch) * all_heads + options_.first_head;
    FillFactors(options_.dropout,
                {.first = (first_head * sequence_ + piece.row) * sequence_ + piece.key,
                 .planes = heads_,
                 .plane_stride = sequence_ * sequence_,
                 .rows = piece.rows,
                 .row_stride = sequence_,
                 .row_size = piece.keys()},
                factors);
    return factors;
  }

  // Returns weights [KV heads, heads of each, rows, keys] as matrices of the type of `like`.
  Tensor Matrices(const Tensor& weights, const Tensor& like) const {
    return weights.view({kv_heads_, -1, weights.size(-1)}).to(like.scalar_type());
  }

  double scale() const { return options_.scale; }

 private:
  const RowAttentionOptions options_;
  const int64_t batch_;
  const int64_t heads_;
  const int64_t sequence_;
  const int64_t kv_heads_;
  const int64_t head_size_;
};

struct SavedOptions : torch::CustomClassHolder {
  explicit SavedOptions(const RowAttentionOptions& the_options) : options(the_options) {}
  const RowAttentionOptions options;
};

class RowAttentionFunction : public torch::autograd::Function<RowAttentionFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const RowAttentionOptions& options) {
    const Pieces pieces(query, key, options);
    Tensor out = at::empty_like(query);
    // For each row, the logarithm of the sum of its scores' exponentials.
    const Tensor log_sums = at::empty({query.size(0), query.size(1), query.size(2), 1},
                                      query.options().dtype(SumTypeOf(query)));
    pieces.ForEach([&](const Piece& piece) {
      Tensor weights = pieces.Scores(query, key, piece);
      pieces.Cap(weights);
      pieces.Mask(weights, piece);
      const Tensor largest = weights.amax(/*dim=*/-1, /*keepdim=*/true);
      weights.sub_(largest).exp_();
      const Tensor sums = weights.sum(/*dim=*/-1, /*keepdim=*/true);
      pieces.RowsOf(log_sums, piece).copy_(sums.log().add_(largest));
      weights.div_(sums);
      const Tensor factors = pieces.DropoutFactors(weights, piece);
      if (factors.defined()) weights.mul_(factors);
      const Tensor rows = pieces.RowsOf(out, piece);
      rows.copy_(at::bmm(pieces.Matrices(weights, value), Pieces::KeysOf(value, piece))
                     .view(rows.sizes()));
    });
    SaveState(context, c10::make_intrusive<SavedOptions>(options));
    context->save_for_backward({query, key, value, out, log_sums});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "RowAttention has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const Tensor& query = saved[0];
    const Tensor& key = saved[1];
    const Tensor& value = saved[2];
    const Tensor& out = saved[3];
    const Tensor& log_sums = saved[4];
    const Tensor& out_grad = output_grads[0];
    const RowAttentionOptions options = SavedState<SavedOptions>(context)->options;
    const Pieces pieces(query, key, options);
    Tensor query_grad = at::empty_like(query);
    // Sums over the pieces.
    const Tensor key_grad = at::zeros(key.sizes(), key.options().dtype(SumTypeOf(key)));
    const Tensor value_grad = at::zeros(value.sizes(), value.options().dtype(SumTypeOf(value)));
    pieces.ForEach([&](const Piece& piece) {
      Tensor weights = pieces.Scores(query, key, piece);
      const Tensor tanh = pieces.Cap(weights);
      pieces.Mask(weights, piece);
      weights.sub_(pieces.RowsOf(log_sums, piece)).exp_();
      const Tensor factors = pieces.DropoutFactors(weights, piece);
      const Tensor grad_rows = pieces.MatricesOf(out_grad, piece);
      const Tensor used = factors.defined() ? weights * factors : weights;
      Pieces::KeysOf(value_grad, piece)
          .add_(at::bmm(pieces.Matrices(used, value).transpose(1, 2), grad_rows));
      Tensor grad =
          Product(grad_rows, Pieces::KeysOf(value, piece).transpose(1, 2)).view(weights.sizes());
      if (factors.defined()) grad.mul_(factors);
      const Tensor row_sums =
          (pieces.RowsOf(out_grad, piece).to(SumTypeOf(out_grad)) * pieces.RowsOf(out, piece))
              .sum(/*dim=*/-1, /*keepdim=*/true);
      grad.sub_(row_sums).mul_(weights);  // It is that of the capped scores now.
      if (tanh.defined()) grad.sub_(tanh.square().mul_(grad));
      const Tensor scores_grad = pieces.Matrices(grad.mul_(pieces.scale()), query);
      const Tensor rows = pieces.RowsOf(query_grad, piece);
      rows.copy_(at::bmm(scores_grad, Pieces::KeysOf(key, piece)).view(rows.sizes()));
      Pieces::KeysOf(key_grad, piece)
          .add_(at::bmm(scores_grad.transpose(1, 2), pieces.MatricesOf(query, piece)));
    });
    return {query_grad, key_grad.to(key.scalar_type()), value_grad.to(value.scalar_type()),
            Variable()};
  }
};

}  // namespace

torch::Tensor RowAttention(const torch::Tensor& query, const torch::Tensor& key,
                           const torch::Tensor& value, const RowAttentionOptions& options) {
  return RowAttentionFunction::apply(query, key, value, options);
}

}  // namespace gemini::trainer
