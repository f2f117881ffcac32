// SPDX-License-Identifier: Apache-2.0
// Says which rows of a vocabulary's table a rank of a line has, and brings the head's sums of all
// its ranks together.
// Sizes:  each rank has equally many rows. The last ones may be behind the vocabulary's end: they
//         are zero, belong to no token and have no logits.
// Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "ATen/ops/embedding.h"
#include "ATen/ops/stack.h"
#include "c10/util/Exception.h"
#include "torch/types.h"
#include "trainer/layer_set.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

struct VocabularyRows {
  int64_t first = 0;
  int64_t count = 0;   // In the vocabulary.
  int64_t padded = 0;  // With those behind its end.
  int64_t vocabulary = 0;

  // The rows of a part, which is `smaller_parts` equal ones. Throws c10::Error: it has no row of
  // the vocabulary.
  static VocabularyRows Of(int64_t vocabulary, const EqualPart& part, int64_t smaller_parts = 1) {
    VocabularyRows rows = {.vocabulary = vocabulary};
    const int64_t num_parts = part.count * smaller_parts;
    rows.padded = (vocabulary + num_parts - 1) / num_parts * smaller_parts;
    rows.first = part.index * rows.padded;
    rows.count = std::min(rows.padded, vocabulary - rows.first);
    TORCH_CHECK(rows.count > 0, "a rank without a row of the vocabulary");
    return rows;
  }

  // Returns the rows of `table`, [padded, width], for ids of any shape: zeros where an id is not
  // among these. The row of `padding_token` gets no gradient; -1 for none.
  torch::Tensor LookUp(const torch::Tensor& table, const torch::Tensor& ids,
                       int64_t padding_token) const {
    const torch::Tensor row = ids - first;
    const torch::Tensor elsewhere = row.lt(0).bitwise_or_(row.ge(count));
    const int64_t padding_row = padding_token - first;
    const bool has_padding = padding_row >= 0 && padding_row < count;
    torch::Tensor found =
        at::embedding(table, row.clamp(0, count - 1), has_padding ? padding_row : -1);
    return found.masked_fill_(elsewhere.unsqueeze(-1), 0);
  }
};

// The merge function of HeadOptions (trainer/models/head_loss.h), of ranks that have all rows.
inline torch::Tensor MergeSumsOfLogits(const torch::Tensor& sums_and_targets,
                                       const RankLine& line) {
  const torch::Tensor all = GatherOverRanks(sums_and_targets, line, "sums of logits");
  const torch::Tensor sums = all.select(1, 0);
  const torch::Tensor largest = sums.amax(/*dim=*/0);
  return at::stack({(sums - largest).exp_().sum(/*dim=*/0).log_().add_(largest),
                    all.select(1, 1).sum(/*dim=*/0)});
}

}  // namespace gemini::trainer
