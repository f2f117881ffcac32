// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/meta_kernels.h"

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

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

// Returns the output, which lies as the query does, and the logarithm of each row's sum.
std::tuple<Tensor, Tensor> FlashAttention(const Tensor& query, const Tensor& /*key*/,
                                          const Tensor& /*value*/, double /*dropout*/,
                                          bool /*is_causal*/, const std::optional<Tensor>& /*mask*/,
                                          std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2);
  const auto sums =
      query.scalar_type() == at::kDouble ? query.options() : query.options().dtype(at::kFloat);
  return {at::empty_like(query), at::empty({batch, rows, heads}, sums).transpose(1, 2)};
}

Three FlashAttentionBackward(const Tensor& /*grad*/, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& /*out*/, const Tensor& /*sums*/,
                             double /*dropout*/, bool /*is_causal*/,
                             const std::optional<Tensor>& /*mask*/,
                             std::optional<double> /*scale*/) {
  const auto like = [](const Tensor& x) {
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  };
  return {like(query), like(key), like(value)};
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
