// SPDX-License-Identifier: Apache-2.0
// Computes attention for which Torch has no fused kernel: with capped scores, in a window, or on a
// CPU with dropout. It goes by pieces of 128 rows of one document, of which each has only keys that
// its rows see, and keeps the logarithm of each row's sum of exponentials in place of scores:
// backward computes those again.
// Bits: pieces do not depend on the batch or on what memory there is.
// Limits: a second derivative is refused.
// Thread: any.
// Source: Dao et al., "FlashAttention", arXiv:2205.14135, sections 3.1 and B.4, by rows alone.
#pragma once
#include <cstdint>

#include "torch/types.h"
#include "trainer/models/dropout_mask.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

struct RowAttentionOptions {
  double scale = 1;
  bool causal = true;   // A row sees itself and the keys before it. If false, all keys.
  int64_t window = 0;   // A causal row sees the window - 1 keys before it. 0 means all before.
  double soft_cap = 0;  // Scores become soft_cap * tanh(score / soft_cap). 0 means no cap.
  // Which weights are dropped, of all [batch, heads, sequence, sequence]: of `all_heads` heads,
  // where those given are some of them, from `first_head` on; 0: those given are all. The
  // sequences given are those from `first_sequence` on.
  DropoutMask dropout = {};
  int64_t first_head = 0;
  int64_t all_heads = 0;
  int64_t first_sequence = 0;
  SharedDocuments documents = {};  // Of the rows given: a row of the query is a token of these.
};

// Returns the attention of query [batch, heads, sequence, head size] and key and value [batch, KV
// heads, sequence, head size], all of one floating dtype, in the query's shape and dtype. Each KV
// head serves heads / KV heads of the query's, in order. Scores and sums are fp32, or fp64. A
// window of attention that is not causal throws c10::Error. Torch's exceptions pass through.
torch::Tensor RowAttention(const torch::Tensor& query, const torch::Tensor& key,
                           const torch::Tensor& value, const RowAttentionOptions& options);

}  // namespace gemini::trainer
