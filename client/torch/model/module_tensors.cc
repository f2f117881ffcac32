// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/module_tensors.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "client/torch/hook/managed_storage.h"
#include "client/torch/model/element_types.h"
#include "gemini/system/status_macros.h"
#include "torch/nn/module.h"

namespace gemini::client::hooks {
namespace {

absl::Status CheckTensor(const std::string& name, const at::Tensor& tensor) {
  if (!ElementTypeOf(tensor.scalar_type())) {
    return absl::UnimplementedError(
        absl::StrCat(name, " is ", c10::toString(tensor.scalar_type()),
                     ": convert the module to float32, bfloat16 or float16 first"));
  }
  if (tensor.layout() != at::kStrided || !(tensor.is_cpu() || tensor.is_meta())) {
    return absl::UnimplementedError(
        absl::StrCat(name, " is not a dense tensor on the CPU or the meta device"));
  }
  if (ManagedStorage::Of(tensor.unsafeGetTensorImpl()) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is managed already"));
  }
  const int64_t storage_bytes = static_cast<int64_t>(tensor.storage().sym_nbytes().expect_int());
  if (tensor.storage_offset() != 0 || !tensor.is_non_overlapping_and_dense() ||
      storage_bytes != tensor.numel() * static_cast<int64_t>(tensor.itemsize())) {
    return absl::UnimplementedError(absl::StrCat(
        name, " is a part of a larger storage, or has gaps between elements: clone() it first"));
  }
  return absl::OkStatus();
}

class Collector {
 public:
  absl::Status Add(const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (!tensor.defined() || tensor.numel() == 0) return absl::OkStatus();
    if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type())) {
      if (!tensor.is_meta()) return absl::OkStatus();
      return absl::FailedPreconditionError(
          absl::StrCat(name, " is an integer tensor on the meta device: make it on the CPU"));
    }
    const auto tied = by_tensor_.find(tensor.unsafeGetTensorImpl());
    if (tied != by_tensor_.end()) {
      result[tied->second].names.push_back(name);
      return absl::OkStatus();
    }
    GEMINI_RETURN_IF_ERROR(CheckTensor(name, tensor));
    const auto [shared, is_new] =
        by_storage_.try_emplace(tensor.storage().unsafeGetStorageImpl(), result.size());
    if (!is_new) {
      return absl::UnimplementedError(
          absl::StrCat(name, " and ", result[shared->second].names.front(),
                       " share memory but are two tensors: register the same tensor under both "
                       "names, or clone() one"));
    }
    by_tensor_[tensor.unsafeGetTensorImpl()] = result.size();
    const TensorGroup group = !is_parameter            ? TensorGroup::kBuffer
                              : tensor.requires_grad() ? TensorGroup::kTrainable
                                                       : TensorGroup::kFrozen;
    result.push_back({{name}, tensor, group, *ElementTypeOf(tensor.scalar_type())});
    return absl::OkStatus();
  }

  std::vector<ModuleTensor> result;

 private:
  std::unordered_map<const c10::TensorImpl*, size_t> by_tensor_;
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage_;
};

// A space has one format of optimizer state.
absl::Status CheckOneFormat(const std::vector<ModuleTensor>& tensors) {
  const ModuleTensor* first = nullptr;
  for (const ModuleTensor& tensor : tensors) {
    if (tensor.group != TensorGroup::kTrainable) continue;
    if (first == nullptr) first = &tensor;
    if (tensor.element == first->element) continue;
    return absl::UnimplementedError(absl::StrCat(
        tensor.names.front(), " is ", ElementTypeName(tensor.element), " and ",
        first->names.front(), " ", ElementTypeName(first->element),
        ": convert the parameters that are trained to one type, or freeze those of the other"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ModuleTensor>> CollectModuleTensors(
    const torch::nn::Module& module, absl::Span<const std::string> first_use_order) {
  Collector collector;
  for (const auto& item : module.named_parameters()) {
    GEMINI_RETURN_IF_ERROR(collector.Add(item.key(), item.value(), true));
  }
  for (const auto& item : module.named_buffers()) {
    GEMINI_RETURN_IF_ERROR(collector.Add(item.key(), item.value(), false));
  }
  GEMINI_RETURN_IF_ERROR(CheckOneFormat(collector.result));
  std::unordered_map<std::string, size_t> rank_of_name;
  for (const std::string& name : first_use_order) {
    rank_of_name.try_emplace(name, rank_of_name.size());
  }
  const auto rank = [&](const ModuleTensor& tensor) {
    size_t first = std::numeric_limits<size_t>::max();
    for (const std::string& name : tensor.names) {
      const auto found = rank_of_name.find(name);
      if (found != rank_of_name.end()) first = std::min(first, found->second);
    }
    return first;
  };
  std::ranges::stable_sort(collector.result, {}, rank);
  return std::move(collector.result);
}

}  // namespace gemini::client::hooks
