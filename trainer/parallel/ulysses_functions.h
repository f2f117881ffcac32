// SPDX-License-Identifier: Apache-2.0
// Exchanges tensors among ranks that have parts of each sequence, so that each gets all tokens of a
// part of the width, and back. Each is the other's backward.
// Graph:  no second derivative. Backward exchanges where it comes to a function, in all ranks
//         alike.
// Errors: as tensor_exchange.h.
// Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.
#pragma once
#include "torch/types.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns this rank's part of the width of all tokens [batch, ranks * tokens, width / ranks], for x
// [batch, tokens, width] of its tokens, which are the part of the sequence of its place.
torch::Tensor WholeTokens(const torch::Tensor& x, const RankLine& line);
// Returns [batch, tokens, width] for x [batch, ranks * tokens, width / ranks].
torch::Tensor WholeWidth(const torch::Tensor& x, const RankLine& line);

// Returns the ranks' tokens in their order in the sequence [batch, ranks * tokens, width], for x
// [batch, tokens, width]; in a zigzag each has two slices of it. Backward takes this rank's.
torch::Tensor GatherTokens(const torch::Tensor& x, const RankLine& line, bool zigzag);

}  // namespace gemini::trainer
