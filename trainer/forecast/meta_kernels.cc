// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/meta_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/result_type.h"
#include "torch/library.h"

namespace gemini::trainer {
namespace {

using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// Elementwise results are laid out by the iterator that lays them out on a CPU.
Tensor Relu(const Tensor& self) {
  Tensor out;
  return at::TensorIterator::unary_op(out, self).output();
}

Tensor& AbsOut(const Tensor& self, Tensor& out) {
  at::TensorIterator::unary_op(out, self);
  return out;
}

Tensor FloorDivide(const Tensor& self, const Tensor& divisor) {
  Tensor out;
  return at::TensorIterator::binary_op(out, self, divisor).output();
}

Tensor& WhereOut(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(condition)
      .add_const_input(self)
      .add_const_input(other)
      .build();
  return out;
}

Tensor Where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::result_type(self, other), at::kMeta)
      .add_owned_output(Tensor())
      .add_const_input(condition)
      .add_const_input(self)
      .add_const_input(other)
      .build()
      .output();
}

Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  // A scalar stays one.
  if (!sizes.empty()) {
    sizes[static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  }
  return at::empty(sizes, self.options());
}

// All values are taken to be below `min_length`: one above makes the result longer on a CPU.
Tensor Bincount(const Tensor& self, const std::optional<Tensor>& weights, c10::SymInt min_length) {
  TORCH_CHECK_NOT_IMPLEMENTED(!weights.has_value(), "bincount with weights on the meta device");
  return at::empty({min_length.expect_int()}, self.options().dtype(at::kLong));
}

Tensor EmbeddingDenseBackward(const Tensor& grad, const Tensor& /*indices*/, c10::SymInt rows,
                              c10::SymInt /*padding_row*/, bool /*scale_grad_by_freq*/) {
  return at::empty({rows.expect_int(), grad.size(-1)}, grad.options());
}

// A norm leaves its results contiguous, however its input lies.
Tensor ContiguousLike(const Tensor& x) { return at::empty(x.sizes(), x.options()); }

// Mean and reciprocal deviation have a value for each row: in fp32, also of 16 bits where the
// parameters are fp32.
Three LayerNorm(const Tensor& input, c10::SymIntArrayRef normalized_shape,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                double /*epsilon*/) {
  std::vector<int64_t> sizes = input.sizes().vec();
  for (size_t i = sizes.size() - normalized_shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  at::ScalarType type = input.scalar_type();
  for (const std::optional<Tensor>& parameter : {bias, weight}) {
    if (parameter.has_value() && parameter->defined()) type = parameter->scalar_type();
  }
  const auto options = input.options().dtype(type);
  return {ContiguousLike(input), at::empty(sizes, options), at::empty(sizes, options)};
}

Three LayerNormBackward(const Tensor& /*grad*/, const Tensor& input,
                        c10::SymIntArrayRef /*normalized_shape*/, const Tensor& /*mean*/,
                        const Tensor& /*deviation*/, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, std::array<bool, 3> wanted) {
  return {wanted[0] ? ContiguousLike(input) : Tensor(),
          wanted[1] && weight.has_value() ? ContiguousLike(*weight) : Tensor(),
          wanted[2] && bias.has_value() ? ContiguousLike(*bias) : Tensor()};
}

// Allocates, and frees again, what fused attention of these heads [batch, heads, rows, head size]
// takes beside its results: for each thread, scores of a tile of rows and keys in fp32, and in 16
// bits once more. Source: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp of Torch 2.11.
void TakeAttentionScratch(const Tensor& query, const Tensor& key, bool is_backward) {
  const int64_t rows = query.size(2);
  const int64_t tile_rows = std::min<int64_t>(rows, rows >= 768 ? 256 : rows >= 192 ? 64 : 32);
  const int64_t tile = tile_rows * std::min<int64_t>(key.size(2), 512);
  const int64_t count = is_backward ? 2 * tile : tile;
  // Forward also keeps the largest score and the sum of each row, and its result in fp32.
  const int64_t beside = is_backward ? tile_rows : tile_rows * (2 + query.size(3));
  const int64_t threads = at::get_num_threads();
  const bool is_fp64 = query.scalar_type() == at::kDouble;
  const Tensor sums = at::empty({threads, count + beside},
                                is_fp64 ? query.options() : query.options().dtype(at::kFloat));
  const bool in_16_bits = query.element_size() == 2;
  const Tensor rounded = at::empty({in_16_bits ? threads : 0, count}, query.options());
}

// Returns the output, which lies as the query does, and the logarithm of each row's sum.
std::tuple<Tensor, Tensor> FlashAttention(const Tensor& query, const Tensor& key,
                                          const Tensor& /*value*/, double /*dropout*/,
                                          bool /*is_causal*/, const std::optional<Tensor>& /*mask*/,
                                          std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2);
  const auto sums =
      query.scalar_type() == at::kDouble ? query.options() : query.options().dtype(at::kFloat);
  std::tuple<Tensor, Tensor> results = {at::empty_like(query),
                                        at::empty({batch, rows, heads}, sums).transpose(1, 2)};
  TakeAttentionScratch(query, key, /*is_backward=*/false);
  return results;
}

Three FlashAttentionBackward(const Tensor& grad, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& /*out*/, const Tensor& /*sums*/,
                             double /*dropout*/, bool /*is_causal*/,
                             const std::optional<Tensor>& /*mask*/,
                             std::optional<double> /*scale*/) {
  const auto like = [](const Tensor& x) {
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  };
  Three results = {like(query), like(key), like(value)};
  const Tensor copied = grad.transpose(1, 2).contiguous();  // Unless it lies so.
  TakeAttentionScratch(query, key, /*is_backward=*/true);
  return results;
}

}  // namespace

void RegisterMetaKernels() {
  static const torch::Library library = [] {
    torch::Library kernels(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                           __LINE__);
    kernels.impl("relu", TORCH_FN(Relu));
    kernels.impl("abs.out", TORCH_FN(AbsOut));
    kernels.impl("floor_divide", TORCH_FN(FloorDivide));
    kernels.impl("where.self", TORCH_FN(Where));
    kernels.impl("where.self_out", TORCH_FN(WhereOut));
    kernels.impl("index_select", TORCH_FN(IndexSelect));
    kernels.impl("bincount", TORCH_FN(Bincount));
    kernels.impl("embedding_dense_backward", TORCH_FN(EmbeddingDenseBackward));
    kernels.impl("native_layer_norm", TORCH_FN(LayerNorm));
    kernels.impl("native_layer_norm_backward", TORCH_FN(LayerNormBackward));
    kernels.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(FlashAttention));
    kernels.impl("_scaled_dot_product_flash_attention_for_cpu_backward",
                 TORCH_FN(FlashAttentionBackward));
    return kernels;
  }();
  static_cast<void>(library);
}

}  // namespace gemini::trainer
