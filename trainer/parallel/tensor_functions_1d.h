// SPDX-License-Identifier: Apache-2.0
// Exchanges, among the ranks of a line, tensors that all of them have or get. In 1d they exchange
// between layers: of two linear layers the first one's columns and the second one's rows are
// divided among them, so that only what goes in and what comes out is whole.
// Graph:   no second derivative. Backward exchanges where it comes to a function, in all ranks
//          alike. A line of one rank exchanges nothing.
// Sums:    left folds by the ranks' places, so all of them get the same bits.
// Errors:  as tensor_exchange.h.
// Source:  Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
#pragma once
#include <cstdint>
#include <string>

#include "torch/types.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns x, which all ranks have alike and go on with in different ways. Backward adds the
// gradients that come of these over the ranks.
torch::Tensor CopyToLine(const torch::Tensor& x, const RankLine& line, const std::string& site);
// Returns the sum of the ranks' tensors, which have the sum's gradient each. Overwrites x: no
// backward may need it.
torch::Tensor ReduceOverLine(torch::Tensor x, const RankLine& line, const std::string& site);
// Returns the ranks' tensors side by side in a dimension, which counts from the last one if it is
// negative. Each gets its part of the gradient, which is the same in all ranks.
torch::Tensor GatherOverLine(const torch::Tensor& x, int64_t dimension, const RankLine& line,
                             const std::string& site);

}  // namespace gemini::trainer
