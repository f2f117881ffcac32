// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include "ATen/ops/scaled_dot_product_attention.h"

namespace gemini::trainer {

torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, int64_t num_heads, double scale,
                              double dropout, bool training) {
  const int64_t batch = query.size(0);
  const int64_t sequence = query.size(1);
  const int64_t head_size = query.size(2) / num_heads;
  const auto by_head = [&](const torch::Tensor& x) {
    return x.view({batch, sequence, num_heads, head_size}).transpose(1, 2);
  };
  const torch::Tensor attended = at::scaled_dot_product_attention(
      by_head(query), by_head(key), by_head(value), /*attn_mask=*/{}, training ? dropout : 0.0,
      /*is_causal=*/sequence > 1, scale);
  return attended.transpose(1, 2).reshape({batch, sequence, num_heads * head_size});
}

}  // namespace gemini::trainer
