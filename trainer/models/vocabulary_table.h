// SPDX-License-Identifier: Apache-2.0
// Looks tokens up in a table that is cut into blocks of rows, each a parameter of its own
// (trainer/families/vocabulary_cut.h). Forward needs one block at a time, and so does backward,
// which gives each its gradient before it makes the next one's.
// Bits:   those of the same table in one block.
// Thread: any.
#pragma once
#include <cstdint>

#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/families/vocabulary_cut.h"

namespace gemini::trainer {

// Returns the rows [..., cut.width] of `ids`, int64 of any shape, each in [0, cut.rows). `blocks`
// are the cut's, leaves of one dtype. The row of `padding_token` gets no gradient; -1 for none.
torch::Tensor LookUp(absl::Span<const torch::Tensor> blocks, const VocabularyCut& cut,
                     const torch::Tensor& ids, int64_t padding_token);

// Adds `gradient` to .grad of a leaf, which fires its hooks, in the middle of a backward pass. If
// the leaf has none, and nobody else holds `gradient`, it becomes it.
void AddToGradient(const torch::Tensor& leaf, torch::Tensor gradient);

}  // namespace gemini::trainer
