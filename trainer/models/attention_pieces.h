// SPDX-License-Identifier: Apache-2.0
// Computes scores and weights of self-attention, and their gradients, by pieces: rows of one
// sequence, and keys that some of them see. Scores and sums are fp32, or fp64 of such tensors.
// Weights are not kept: backward computes them again from the logarithms of the rows' sums.
// Shapes: query, out and their gradients [batch, heads, tokens, head size]; key, value and theirs
//         [batch, KV heads, tokens, head size]; each KV head serves heads / KV heads of the
//         query's, in order. The tokens of query and key may be different ones of the sequence.
// Thread: any.
// Source: Dao et al., "FlashAttention", arXiv:2205.14135, sections 3.1 and B.4, by rows alone.
#pragma once
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/models/row_attention.h"

namespace gemini::trainer {

// Tokens that are side by side both in a tensor and in the sequence that they are of.
struct TokenSlice {
  int64_t place = 0;     // In the tensor.
  int64_t position = 0;  // In the sequence.
  int64_t count = 0;
};

struct AttentionPiece {
  int64_t batch = 0;
  TokenSlice rows;  // At most 128.
  TokenSlice keys;
};

// What attention was computed from, and what came of it.
struct AttentionTensors {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor out;
  torch::Tensor log_sums;  // [batch, heads, tokens, 1]: of each row's exponentials of scores.
};

// Gradients of a piece, as matrices of each KV head.
struct PieceGradients {
  torch::Tensor query;  // Shaped like RowsOf.
  torch::Tensor key;    // Shaped like KeysOf, as the next.
  torch::Tensor value;
};

// Returns the type of the scores and sums of attention to x.
torch::ScalarType TypeOfSums(const torch::Tensor& x);

class AttentionPieces {
 public:
  // `sequence`: tokens of the whole sequence. A window of attention that is not causal throws
  // c10::Error.
  AttentionPieces(const torch::Tensor& query, const torch::Tensor& key,
                  const RowAttentionOptions& options, int64_t sequence);

  // Visits pieces that have all rows, and all keys that a row sees. A piece has no key that none of
  // its rows sees, but for keys between others.
  void ForEach(absl::Span<const TokenSlice> rows, absl::Span<const TokenSlice> keys,
               absl::FunctionRef<void(const AttentionPiece&)> visit) const;
  // Visits those of each document, of whole sequences.
  void ForEachInDocuments(absl::FunctionRef<void(const AttentionPiece&)> visit) const;

  // Returns a piece's rows of x [batch, heads, tokens, ...], as [KV heads, heads of each, rows,
  // ...].
  torch::Tensor RowsOf(const torch::Tensor& x, const AttentionPiece& piece) const;
  // Returns a piece's keys or values of x [batch, KV heads, tokens, head size].
  static torch::Tensor KeysOf(const torch::Tensor& x, const AttentionPiece& piece);

  // Returns scores [KV heads, heads of each, rows, keys], minus infinity where a row does not see a
  // key.
  torch::Tensor Scores(const torch::Tensor& query, const torch::Tensor& key,
                       const AttentionPiece& piece) const;
  // Returns the sums of values, shaped like RowsOf(out), for weights [KV heads, heads of each,
  // rows, keys], of which it drops some in place.
  torch::Tensor SumOfValues(torch::Tensor& weights, const torch::Tensor& value,
                            const AttentionPiece& piece) const;
  PieceGradients GradientsOf(const AttentionTensors& of, const torch::Tensor& out_gradient,
                             const AttentionPiece& piece) const;

 private:
  void ForEachOf(int64_t batch, absl::Span<const TokenSlice> rows,
                 absl::Span<const TokenSlice> keys,
                 absl::FunctionRef<void(const AttentionPiece&)> visit) const;
  // Returns a piece's rows as a matrix of each KV head, the rows of its heads behind each other.
  torch::Tensor MatricesOf(const torch::Tensor& x, const AttentionPiece& piece) const;
  // Returns weights as matrices of the type of `like`.
  torch::Tensor Matrices(const torch::Tensor& weights, const torch::Tensor& like) const;
  // Caps the scores in place. Returns tanh(score / cap), undefined without a cap.
  torch::Tensor Cap(torch::Tensor& scores) const;
  void Mask(torch::Tensor& scores, const AttentionPiece& piece) const;
  // Returns scores before they are capped.
  torch::Tensor Products(const torch::Tensor& query, const torch::Tensor& key,
                         const AttentionPiece& piece) const;
  // Returns what dropout multiplies each weight by; undefined without dropout.
  torch::Tensor DropoutFactors(const torch::Tensor& weights, const AttentionPiece& piece) const;

  const RowAttentionOptions options_;
  const int64_t batch_;
  const int64_t heads_;
  const int64_t sequence_;
  const int64_t kv_heads_;
  const int64_t head_size_;
};

}  // namespace gemini::trainer
