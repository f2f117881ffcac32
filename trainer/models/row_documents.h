// SPDX-License-Identifier: Apache-2.0
// Describes which documents the rows of a batch hold. A token attends to those of its own document,
// where positions count from 0, so that a row computes what its documents alone would. But
// frequencies of LongRope, which depend on the length, are those of the longest document of a
// batch, as in transformers.
// Padding: a row's tokens behind its documents. They attend to nothing, and nothing attends to
//          them.
// Owner:  one thread; a batch's is not changed any more.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "torch/types.h"

namespace gemini::trainer {

struct RowDocuments {
  // By row: how many tokens each of its documents has, in their order. All are > 0.
  std::vector<std::vector<int64_t>> lengths;

  int64_t longest() const;  // 0 without a document.
  // Returns `count` rows, from row `first` on.
  RowDocuments RowsFrom(int64_t first, int64_t count) const;
  // Returns the positions of the tokens of rows of `sequence` tokens, in their documents: int64
  // [rows, sequence], on the CPU. Those of padding count from 0, too.
  torch::Tensor Positions(int64_t sequence) const;
};
// It is null where each row is one document.
using SharedDocuments = std::shared_ptr<const RowDocuments>;

}  // namespace gemini::trainer
