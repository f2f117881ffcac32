// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/parameter_edits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/host/edited_parameter.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {

absl::Status ParameterEdits::Prepare(RangeId param) {
  const int64_t number = Find(param);
  if (number < 0) return absl::OkStatus();
  Mark(number);
  const ModelRange& range = tensors_.ranges()[number];
  // Edited before its commit, it could have to be written back by who must not wait for one.
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    GEMINI_RETURN_IF_ERROR(
        tensors_.store().updates().AwaitCommit(BundleId(range.first.value() + i)));
  }
  if (!IsAnyOnDeviceAlone(range)) return absl::OkStatus();
  for (const ChunkKind kind : KindsOfValue(tensors_.store().format(), ChunkKind::kParam)) {
    GEMINI_RETURN_IF_ERROR(tensors_.residency().WriteBack(range.ids[kind]));
  }
  return absl::OkStatus();
}

absl::Status ParameterEdits::Note(RangeId param) {
  const int64_t number = Find(param);
  if (number < 0) return absl::OkStatus();
  Mark(number);
  const ModelRange& range = tensors_.ranges()[number];
  if (!IsAnyOnDeviceAlone(range)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("bundle ", range.first.value(), " of space ", tensors_.store().name(),
                   " was written to by an operator whose schema does not say so, before its "
                   "update on DEVICE was written back: what it held is lost"));
}

bool ParameterEdits::IsEdited(int64_t range) const {
  MutexLock lock(mutex_);
  return range < static_cast<int64_t>(edited_.size()) && edited_[range];
}

void ParameterEdits::Forget(int64_t range) {
  MutexLock lock(mutex_);
  if (range < static_cast<int64_t>(edited_.size())) edited_[range] = false;
}

int64_t ParameterEdits::Find(RangeId param) const {
  if (tensors_.store().format().element == ElementType::kFp32) return -1;
  const std::vector<ModelRange>& ranges = tensors_.ranges();
  const auto found = std::ranges::find(ranges, param, &ModelRange::param);
  if (found == ranges.end() || found->group != TensorGroup::kTrainable) return -1;
  return found - ranges.begin();
}

bool ParameterEdits::IsAnyOnDeviceAlone(const ModelRange& range) const {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    if (IsOnDeviceAlone(tensors_.store(), BundleId(range.first.value() + i))) return true;
  }
  return false;
}

void ParameterEdits::Mark(int64_t range) {
  MutexLock lock(mutex_);
  if (range >= static_cast<int64_t>(edited_.size())) edited_.resize(range + 1);
  edited_[range] = true;
}

}  // namespace gemini::client::hooks
