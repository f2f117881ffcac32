// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/tensor_copy.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/device/range_read.h"
#include "client/torch/hook/managed_storage.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {

absl::StatusOr<PendingCopy> BeginCopy(Session& session, const at::Tensor& tensor,
                                      const at::Tensor& to) {
  GEMINI_RETURN_IF_ERROR(session.status());
  ManagedStorage* const managed = ManagedStorage::Of(tensor.unsafeGetTensorImpl());
  if (managed == nullptr || managed->retired()) {
    return absl::FailedPreconditionError("not a tensor in the session's memory: nothing to copy");
  }
  if (!managed->ready()) GEMINI_RETURN_IF_ERROR(managed->owner().Prepare(*managed));
  const auto size_bytes = static_cast<int64_t>(tensor.nbytes());
  if (!tensor.is_contiguous() || !to.is_contiguous() || to.device() != tensor.device() ||
      static_cast<int64_t>(to.nbytes()) != size_bytes ||
      ManagedStorage::Of(to.unsafeGetTensorImpl()) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(managed->name(), " of ", size_bytes,
                     " bytes is copied to a contiguous tensor of as many, on its device and not in "
                     "the session's memory"));
  }
  const int64_t offset_bytes =
      managed->offset_bytes() + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  PendingCopy copy = {.range = managed->range(), .copied = {}};
  GEMINI_ASSIGN_OR_RETURN(copy.copied, BeginRead(session.residency().tier(), copy.range,
                                                 offset_bytes, to.mutable_data_ptr(), size_bytes));
  return copy;
}

void AwaitCopy(Session& session, const PendingCopy& copy) {
  AwaitRead(session.residency().tier(), copy.range, copy.copied);
}

}  // namespace gemini::client::hooks
