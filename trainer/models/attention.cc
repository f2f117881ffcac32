// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include "ATen/ops/cat.h"
#include "ATen/ops/scaled_dot_product_attention.h"

namespace gemini::trainer {
namespace {

// Returns x [batch, heads, sequence, head size] rotated by the angles of `context`, or x itself if
// there are none.
torch::Tensor Rotate(const torch::Tensor& x, const BatchContext& context) {
  if (!context.cosine.defined()) return x;
  const int64_t half = x.size(-1) / 2;
  const torch::Tensor turned =
      at::cat({-x.slice(/*dim=*/-1, half), x.slice(/*dim=*/-1, 0, half)}, /*dim=*/-1);
  torch::Tensor out = x * context.cosine;
  out += turned * context.sine;  // In place: the graph reads neither.
  return out;
}

}  // namespace

torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, const AttentionSpec& spec, double scale,
                              const BatchContext& context, bool training) {
  const int64_t batch = query.size(0);
  const int64_t sequence = query.size(1);
  const auto by_head = [&](const torch::Tensor& x) {
    return x.view({batch, sequence, -1, spec.head_size}).transpose(1, 2);
  };
  const torch::Tensor attended = at::scaled_dot_product_attention(
      Rotate(by_head(query), context), Rotate(by_head(key), context), by_head(value),
      /*attn_mask=*/{}, training ? spec.dropout : 0.0, /*is_causal=*/sequence > 1, scale,
      /*enable_gqa=*/spec.num_kv_heads != spec.num_heads);
  return attended.transpose(1, 2).reshape(query.sizes());
}

}  // namespace gemini::trainer
