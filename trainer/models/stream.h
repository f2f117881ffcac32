// SPDX-License-Identifier: Apache-2.0
// What flows through the blocks of a model for one batch: each block takes a stream and returns the
// next one.
#pragma once
#include "torch/types.h"

namespace gemini::trainer {

struct Stream {
  torch::Tensor hidden;  // [batch, sequence, width].
  // Sums over the blocks that the batch went through: fp32 [2, experts]. The first row counts how
  // many tokens chose each expert, and gets no gradient; the second sums the router's probabilities
  // of the tokens. Undefined before the first block with experts, and in models whose loss includes
  // no router's.
  torch::Tensor router_sums = {};
};

}  // namespace gemini::trainer
