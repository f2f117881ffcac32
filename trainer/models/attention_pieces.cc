// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention_pieces.h"

#include <algorithm>
#include <limits>

#include "ATen/OpMathType.h"
#include "ATen/ops/bmm.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/ones.h"
#include "trainer/models/counter_dropout.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 128;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Returns a b, of matrices of one type: products of 16 bits are fp32, not rounded before they are
// scaled.
Tensor Product(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == TypeOfSums(a)) return at::bmm(a, b);
  if (a.is_cuda()) return at::bmm(a, b, torch::kFloat32);
  return at::bmm(a.to(torch::kFloat32), b.to(torch::kFloat32));
}

}  // namespace

torch::ScalarType TypeOfSums(const Tensor& x) { return at::toOpMathType(x.scalar_type()); }

AttentionPieces::AttentionPieces(const Tensor& query, const Tensor& key,
                                 const RowAttentionOptions& options, int64_t sequence)
    : options_(options),
      batch_(query.size(0)),
      heads_(query.size(1)),
      sequence_(sequence),
      kv_heads_(key.size(1)),
      head_size_(query.size(3)) {
  TORCH_CHECK(options.causal || options.window == 0,
              "a window of attention that is not causal: ", options.window);
}

void AttentionPieces::ForEach(absl::Span<const TokenSlice> rows, absl::Span<const TokenSlice> keys,
                              absl::FunctionRef<void(const AttentionPiece&)> visit) const {
  for (int64_t batch = 0; batch < batch_; ++batch) ForEachOf(batch, rows, keys, visit);
}

void AttentionPieces::ForEachInDocuments(
    absl::FunctionRef<void(const AttentionPiece&)> visit) const {
  for (int64_t batch = 0; batch < batch_; ++batch) {
    int64_t begin = 0;
    const auto visit_document = [&](int64_t length) {
      const TokenSlice document = {.place = begin, .position = begin, .count = length};
      ForEachOf(batch, {document}, {document}, visit);
      begin += length;
    };
    if (options_.documents == nullptr) {
      visit_document(sequence_);
      continue;
    }
    for (const int64_t length : options_.documents->lengths[static_cast<size_t>(batch)]) {
      visit_document(length);
    }
  }
}

void AttentionPieces::ForEachOf(int64_t batch, absl::Span<const TokenSlice> rows,
                                absl::Span<const TokenSlice> keys,
                                absl::FunctionRef<void(const AttentionPiece&)> visit) const {
  for (const TokenSlice& slice : rows) {
    for (int64_t at = 0; at < slice.count; at += kRows) {
      const TokenSlice some = {slice.place + at, slice.position + at,
                               std::min(kRows, slice.count - at)};
      for (const TokenSlice& all : keys) {
        const int64_t seen_from = options_.window == 0 ? 0 : some.position - options_.window + 1;
        const int64_t begin = std::max(all.position, seen_from);
        int64_t end = all.position + all.count;
        if (options_.causal) end = std::min(end, some.position + some.count);
        if (begin >= end) continue;
        visit({batch, some, {all.place + begin - all.position, begin, end - begin}});
      }
    }
  }
}

Tensor AttentionPieces::RowsOf(const Tensor& x, const AttentionPiece& piece) const {
  return x[piece.batch]
      .unflatten(0, {kv_heads_, -1})
      .narrow(/*dim=*/2, piece.rows.place, piece.rows.count);
}

Tensor AttentionPieces::KeysOf(const Tensor& x, const AttentionPiece& piece) {
  return x[piece.batch].narrow(/*dim=*/1, piece.keys.place, piece.keys.count);
}

Tensor AttentionPieces::MatricesOf(const Tensor& x, const AttentionPiece& piece) const {
  return RowsOf(x, piece).reshape({kv_heads_, -1, head_size_});
}

Tensor AttentionPieces::Matrices(const Tensor& weights, const Tensor& like) const {
  return weights.view({kv_heads_, -1, weights.size(-1)}).to(like.scalar_type());
}

Tensor AttentionPieces::Products(const Tensor& query, const Tensor& key,
                                 const AttentionPiece& piece) const {
  Tensor scores = Product(MatricesOf(query, piece), KeysOf(key, piece).transpose(1, 2));
  scores.mul_(options_.scale);
  return scores.view({kv_heads_, -1, piece.rows.count, piece.keys.count});
}

Tensor AttentionPieces::Cap(Tensor& scores) const {
  if (options_.soft_cap == 0) return {};
  Tensor tanh = scores.div_(options_.soft_cap).tanh_();
  scores = tanh * options_.soft_cap;
  return tanh;
}

void AttentionPieces::Mask(Tensor& scores, const AttentionPiece& piece) const {
  if (!options_.causal) return;
  const int64_t own = piece.rows.position - piece.keys.position;  // The key of the first row.
  const int64_t last_row = own + piece.rows.count - 1;
  const bool has_later_keys = piece.keys.count > own + 1;
  const bool has_keys_before = options_.window > 0 && last_row >= options_.window;
  if (!has_later_keys && !has_keys_before) return;  // Each row sees all keys.
  const Tensor all =
      at::ones({piece.rows.count, piece.keys.count}, scores.options().dtype(torch::kBool));
  if (has_later_keys) scores.masked_fill_(all.triu(own + 1), kMinusInfinity);
  if (has_keys_before) scores.masked_fill_(all.tril(own - options_.window), kMinusInfinity);
}

Tensor AttentionPieces::Scores(const Tensor& query, const Tensor& key,
                               const AttentionPiece& piece) const {
  Tensor scores = Products(query, key, piece);
  Cap(scores);
  Mask(scores, piece);
  return scores;
}

Tensor AttentionPieces::DropoutFactors(const Tensor& weights, const AttentionPiece& piece) const {
  if (options_.dropout.probability == 0) return {};
  const int64_t all_heads = options_.all_heads == 0 ? heads_ : options_.all_heads;
  // Factors are fp32 also where scores are fp64.
  Tensor factors = at::empty_like(weights, torch::kFloat32);
  const int64_t first_head =
      (options_.first_sequence + piece.batch) * all_heads + options_.first_head;
  FillFactors(
      options_.dropout,
      {.first = (first_head * sequence_ + piece.rows.position) * sequence_ + piece.keys.position,
       .planes = heads_,
       .plane_stride = sequence_ * sequence_,
       .rows = piece.rows.count,
       .row_stride = sequence_,
       .row_size = piece.keys.count},
      factors);
  return factors;
}

Tensor AttentionPieces::SumOfValues(Tensor& weights, const Tensor& value,
                                    const AttentionPiece& piece) const {
  const Tensor factors = DropoutFactors(weights, piece);
  if (factors.defined()) weights.mul_(factors);
  return at::bmm(Matrices(weights, value), KeysOf(value, piece))
      .view({kv_heads_, -1, piece.rows.count, head_size_});
}

PieceGradients AttentionPieces::GradientsOf(const AttentionTensors& of, const Tensor& out_gradient,
                                            const AttentionPiece& piece) const {
  PieceGradients gradients;
  Tensor weights = Products(of.query, of.key, piece);
  const Tensor tanh = Cap(weights);
  Mask(weights, piece);
  weights.sub_(RowsOf(of.log_sums, piece)).exp_();
  const Tensor factors = DropoutFactors(weights, piece);
  const Tensor grad_rows = MatricesOf(out_gradient, piece);
  const Tensor used = factors.defined() ? weights * factors : weights;
  gradients.value = at::bmm(Matrices(used, of.value).transpose(1, 2), grad_rows);
  Tensor grad = Product(grad_rows, KeysOf(of.value, piece).transpose(1, 2)).view(weights.sizes());
  if (factors.defined()) grad.mul_(factors);
  const Tensor row_sums =
      (RowsOf(out_gradient, piece).to(TypeOfSums(out_gradient)) * RowsOf(of.out, piece))
          .sum(/*dim=*/-1, /*keepdim=*/true);
  grad.sub_(row_sums).mul_(weights);  // It is that of the capped scores now.
  if (tanh.defined()) grad.sub_(tanh.square().mul_(grad));
  const Tensor scores_grad = Matrices(grad.mul_(options_.scale), of.query);
  gradients.query = at::bmm(scores_grad, KeysOf(of.key, piece))
                        .view({kv_heads_, -1, piece.rows.count, head_size_});
  gradients.key = at::bmm(scores_grad.transpose(1, 2), MatricesOf(of.query, piece));
  return gradients;
}

}  // namespace gemini::trainer
