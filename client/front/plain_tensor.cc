// SPDX-License-Identifier: Apache-2.0
#include "client/front/plain_tensor.h"

#include <cstdlib>
#include <cstring>

#include "ATen/ops/from_blob.h"
#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "c10/util/StringUtil.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::front {

absl::StatusOr<at::Tensor> MakePlainTensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                                           at::ScalarType type) {
  int64_t size_bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : sizes) size_bytes *= size;
  void* const data = std::aligned_alloc(
      kTensorAlignmentBytes,
      static_cast<size_t>(RoundUp(std::max<int64_t>(size_bytes, 1), kTensorAlignmentBytes)));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("plain memory for ", FormatByteSize(size_bytes),
                     " more is not to be had: use gemini::Save, which needs none"));
  }
  return at::from_blob(
      data, sizes, strides, [](void* memory) { std::free(memory); },
      at::TensorOptions().dtype(type));
}

namespace {

// A parameter may have been given other data since it was managed (torch::load of a module with
// another shape): the session still has as many elements as before.
absl::Status CheckShape(const hooks::ManagedModel& model, const std::string& name,
                        const at::Tensor& like) {
  for (const hooks::ManagedTensorInfo& info : model.tensors()) {
    if (info.name != name || at::IntArrayRef(info.sizes) == like.sizes()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        name, " has the sizes ", c10::str(like.sizes()), " now, and ",
        c10::str(at::IntArrayRef(info.sizes)), " in the session: load values of its own shape"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<at::Tensor> ReadPlain(hooks::ManagedModel& model, const std::string& name,
                                     ChunkKind kind, const at::Tensor& like) {
  GEMINI_RETURN_IF_ERROR(CheckShape(model, name, like));
  GEMINI_ASSIGN_OR_RETURN(at::Tensor values,
                          MakePlainTensor(like.sizes(), like.strides(), at::kFloat));
  auto* const data = static_cast<std::byte*>(values.data_ptr());
  GEMINI_RETURN_IF_ERROR(
      model.Read(name, kind, [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
        std::memcpy(data + offset_bytes, bytes.data(), bytes.size());
        return absl::OkStatus();
      }));
  return values;
}

absl::Status WritePlain(hooks::ManagedModel& model, const std::string& name, ChunkKind kind,
                        const at::Tensor& like, const at::Tensor& values) {
  GEMINI_RETURN_IF_ERROR(CheckShape(model, name, like));
  if (!values.defined() || values.sizes() != like.sizes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has the sizes ", c10::str(like.sizes()), ", and what was loaded has ",
                     values.defined() ? c10::str(values.sizes()) : "no values"));
  }
  // In the order of the managed tensor's own elements.
  GEMINI_ASSIGN_OR_RETURN(at::Tensor ordered,
                          MakePlainTensor(like.sizes(), like.strides(), at::kFloat));
  ordered.copy_(values);
  const auto* const data = static_cast<const std::byte*>(ordered.const_data_ptr());
  return model.Write(name, kind, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
    std::memcpy(bytes.data(), data + offset_bytes, bytes.size());
    return absl::OkStatus();
  });
}

}  // namespace gemini::client::front
