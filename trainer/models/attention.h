// SPDX-License-Identifier: Apache-2.0
// Causal self-attention by Torch's fused kernel, which stores no scores.
#pragma once
#include <cstdint>

#include "torch/types.h"

namespace gemini::trainer {

// Of query, key and value [batch, sequence, heads * head size]; returns the same shape. `scale`
// multiplies the scores; dropout is drawn when `training`.
torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, int64_t num_heads, double scale,
                              double dropout, bool training);

}  // namespace gemini::trainer
