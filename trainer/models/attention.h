// SPDX-License-Identifier: Apache-2.0
// Causal self-attention by Torch's scaled_dot_product_attention. It stores no scores, except on a
// CPU where dropout is drawn, and on a GPU in fp32 where heads are shared: no fused kernel there
// takes that.
#pragma once
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/models/batch_context.h"

namespace gemini::trainer {

// Returns the attention of query [batch, sequence, num_heads * head_size] and key and value [batch,
// sequence, num_kv_heads * head_size], all of one floating dtype, as a contiguous tensor of the
// query's shape and dtype. Query and key are rotated where `context` says so. The scores are
// multiplied by `scale`; dropout is drawn where `training`. Torch's exceptions pass through.
torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, const AttentionSpec& spec, double scale,
                              const BatchContext& context, bool training);

}  // namespace gemini::trainer
