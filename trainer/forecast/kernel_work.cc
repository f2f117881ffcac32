// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/kernel_work.h"

#include <algorithm>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/torch/hook/tensor_walk.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kFp32Bytes = 4;
constexpr int64_t kSmallBlockBytes = 128;  // Of oneDNN, beside the sums.

double BytesOf(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) return 0;  // An optional argument that is not given.
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
}

double BytesOf(const c10::IValue& value) {
  double bytes = 0;
  client::hooks::ForEachTensor(value, [&](c10::TensorImpl* tensor) { bytes += BytesOf(*tensor); });
  return bytes;
}

// Adds the product of a [.., m, k] and b [.., k, n].
void AddProduct(const at::Tensor& a, const at::Tensor& b, KernelWork& work) {
  const int64_t sums = a.numel() / std::max<int64_t>(a.size(-1), 1) * b.size(-1);
  work.flops += 2.0 * static_cast<double>(sums) * static_cast<double>(a.size(-1));
  if (a.element_size() >= kFp32Bytes) return;
  work.sum_bytes = sums * kFp32Bytes + kSmallBlockBytes;
  work.packed_bytes = static_cast<int64_t>(b.nbytes());
}

// Adds `num_products` products of [rows, head size] and [head size, rows] a head, of which a causal
// mask hides half. `query`: [batch, heads, rows, head size].
void AddAttention(const at::Tensor& query, double num_products, bool is_causal, KernelWork& work) {
  work.is_attention = true;
  work.flops += (is_causal ? 1 : 2) * num_products * static_cast<double>(query.numel()) *
                static_cast<double>(query.size(2));
}

}  // namespace

KernelWork WorkOfInputs(const c10::FunctionSchema& schema,
                        c10::ArrayRef<const c10::IValue> inputs) {
  KernelWork work;
  absl::string_view name = schema.name();
  if (!absl::ConsumePrefix(&name, "aten::")) return work;
  if (absl::StartsWith(name, "empty") || absl::StartsWith(name, "new_empty") || name == "resize_" ||
      name == "set_") {
    return work;
  }
  work.is_kernel = true;
  const size_t count = schema.arguments().size();
  if (inputs.size() < count) return work;
  inputs = inputs.slice(inputs.size() - count);
  if (name == "index_select" || name == "embedding_dense_backward") {
    // Reads the rows that are looked up, and not the table.
    if (name == "embedding_dense_backward") work.bytes = BytesOf(inputs[0]);
    return work;
  }
  for (size_t i = 0; i < count; ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    work.writes_input |= written;
    work.bytes += BytesOf(inputs[i]) * (written && name != "copy_" ? 2 : 1);
  }
  if (name == "mm" || name == "bmm") {
    AddProduct(inputs[0].toTensor(), inputs[1].toTensor(), work);
  } else if (name == "addmm" || name == "addmm_" || name == "baddbmm") {
    AddProduct(inputs[1].toTensor(), inputs[2].toTensor(), work);
  } else if (name == "_scaled_dot_product_flash_attention_for_cpu") {
    AddAttention(inputs[0].toTensor(), 2, inputs[4].toBool(), work);
  } else if (name == "_scaled_dot_product_flash_attention_for_cpu_backward") {
    AddAttention(inputs[1].toTensor(), 5, inputs[7].toBool(), work);
  }
  return work;
}

KernelWork WorkOfDropout(c10::ArrayRef<const c10::IValue> inputs) {
  const std::vector<int64_t> box = inputs[2].toIntVector();
  const double elements =
      static_cast<double>(box[1]) * static_cast<double>(box[3]) * static_cast<double>(box[5]);
  return {.is_kernel = true, .bytes = 2 * kFp32Bytes * elements};
}

void AddOutputs(c10::ArrayRef<c10::IValue> outputs, KernelWork& work) {
  if (work.writes_input) return;
  for (const c10::IValue& output : outputs) work.bytes += BytesOf(output);
}

}  // namespace gemini::trainer
