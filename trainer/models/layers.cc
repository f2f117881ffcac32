// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/layers.h"

#include "ATen/ops/addmm.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/scaled_dot_product_attention.h"

namespace gemini::trainer {

Linear::Linear(int64_t in, int64_t out, bool bias, const torch::TensorOptions& options) {
  weight_ = register_parameter("weight", torch::empty({out, in}, options));
  if (bias) bias_ = register_parameter("bias", torch::empty({out}, options));
}

torch::Tensor Linear::Forward(const torch::Tensor& x) const {
  return at::linear(x, weight_, bias_);
}

Conv1d::Conv1d(int64_t in, int64_t out, const torch::TensorOptions& options) {
  weight_ = register_parameter("weight", torch::empty({in, out}, options));
  bias_ = register_parameter("bias", torch::empty({out}, options));
}

torch::Tensor Conv1d::Forward(const torch::Tensor& x) const {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight_.size(1);
  return at::addmm(bias_, x.view({-1, x.size(-1)}), weight_).view(shape);
}

LayerNorm::LayerNorm(int64_t size, double epsilon, bool affine, const torch::TensorOptions& options)
    : size_(size), epsilon_(epsilon) {
  if (!affine) return;
  weight_ = register_parameter("weight", torch::empty({size}, options));
  bias_ = register_parameter("bias", torch::empty({size}, options));
}

torch::Tensor LayerNorm::Forward(const torch::Tensor& x) const {
  return at::layer_norm(x, {size_}, weight_, bias_, epsilon_);
}

Embedding::Embedding(int64_t count, int64_t size, int64_t padding_token,
                     const torch::TensorOptions& options)
    : padding_token_(padding_token) {
  weight_ = register_parameter("weight", torch::empty({count, size}, options));
}

torch::Tensor Embedding::Forward(const torch::Tensor& ids) const {
  return at::embedding(weight_, ids, padding_token_);
}

torch::Tensor Activate(Activation activation, const torch::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  TORCH_INTERNAL_ASSERT(false);
}

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
