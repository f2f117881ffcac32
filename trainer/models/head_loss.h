// SPDX-License-Identifier: Apache-2.0
// Computes the head of a language model and its cross entropy in one, by pieces of tokens and of
// the vocabulary, so that the logits of all tokens never exist (trainer/families/vocabulary_cut.h).
// Memory: where the table is one block, the logits of one piece of tokens, and the table's
//         gradient, which forward computes; in 16 bits it is summed in fp32 first. Where it is
//         several, the logits of one piece of both, and the gradient of one block: forward goes
//         through the blocks once, and backward computes logits again.
// Bits:   the same, however many blocks there are: products, and sums over pieces, come in one
//         order, the latter in fp32, or of fp64 in that.
// Graph:  each block gets its gradient in backward before the next one's is made, and hooks see it
//         then; a bias gets its own behind them. No second derivative, and no second backward
//         through the same graph.
// Thread: any.
// Source: sums by pieces are those of Milakov and Gimelshein, "Online normalizer calculation for
//         softmax", arXiv:1805.02867.
#pragma once
#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/families/vocabulary_cut.h"

namespace gemini::trainer {

struct HeadOptions {
  VocabularyCut cut = {};
  bool on_cpu = true;      // Whether a CPU computes it.
  double logit_scale = 1;  // The logits are multiplied by it,
  double soft_cap = 0;     // and become soft_cap * tanh(logit / soft_cap). 0 means no cap.
  // Where several ranks have parts of the vocabulary: the first row of this one's, and what makes
  // of its part's sums for some tokens those of the whole. It takes and returns [2, tokens], fp32
  // or fp64: the logarithm of the sum of the logits' exponentials, and the label's logit, or 0
  // where the label is not in this part.
  int64_t first_row = 0;
  std::function<torch::Tensor(torch::Tensor)> merge = nullptr;
  // Where ranks have parts of the width, too, of which the block has this one's, and all rows that
  // these ranks have together: `add` makes of the products of such parts, [.., rows of the block],
  // their sums for this rank's rows, [.., rows of the cut], and `gather` of their derivatives those
  // of all products. There is one block, and the cut has one piece of the vocabulary.
  std::function<torch::Tensor(torch::Tensor)> add = nullptr;
  std::function<torch::Tensor(torch::Tensor)> gather = nullptr;
};

// Returns the logits [.., rows] of hidden states [.., width] whole, for whoever needs them. `bias`,
// [rows] of the cut and of the hidden states' dtype, is added before they are scaled and capped,
// unless it is undefined. One of another shape, or with parts of the width, throws c10::Error.
torch::Tensor HeadLogits(const torch::Tensor& hidden, absl::Span<const torch::Tensor> blocks,
                         const HeadOptions& options, const torch::Tensor& bias = {});

// Returns the sum of the cross entropies of `labels`, int64 [tokens], as predicted from `hidden`
// [tokens, width]: fp32, or fp64 of such, of no dimension. A negative label counts for nothing.
// `blocks` are the cut's, of the hidden states' dtype: leaves, or one that is none and gets its
// gradient as other functions give it. `gradient` is what backward will be given for the sum; it is
// right with another one, too, but computes more then, and rounds once more. `bias` is as above.
torch::Tensor HeadLoss(const torch::Tensor& hidden, const torch::Tensor& labels,
                       absl::Span<const torch::Tensor> blocks, const HeadOptions& options,
                       double gradient, const torch::Tensor& bias = {});

}  // namespace gemini::trainer
