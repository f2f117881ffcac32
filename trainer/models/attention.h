// SPDX-License-Identifier: Apache-2.0
// Causal self-attention by Torch's scaled_dot_product_attention. It stores no scores, but on a CPU
// where dropout is drawn: the fused kernel there has none.
#pragma once
#include <cstdint>

#include "torch/types.h"

namespace gemini::trainer {

// Returns the attention of query, key and value, each [batch, sequence, num_heads * head size] and
// of one floating dtype, as a contiguous tensor of that shape and dtype. The scores are multiplied
// by `scale`; `dropout` of their softmax is drawn where `training`. Torch's exceptions pass
// through.
torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, int64_t num_heads, double scale,
                              double dropout, bool training);

}  // namespace gemini::trainer
