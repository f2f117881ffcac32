// SPDX-License-Identifier: Apache-2.0
// Tracks writes to 16-bit parameters outside of updates, such as param.copy_() under NoGradGuard.
// Which elements were written is found by comparing with the bytes before, from which the master
// also gets its new values (client/host/edited_parameter.h). So a version that an update made on
// DEVICE, and that is stored only there, is written back before the write. Until its next update
// such a range is updated in HOST, because copies of its master on DEVICE are stale.
// Thread: any; one lock, which is not held over I/O. Two threads that edit the same parameter must
// order their edits.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/torch/model/model_tensors.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {

class ParameterEdits {
 public:
  // `tensors` outlives this.
  explicit ParameterEdits(ModelTensors& tensors) : tensors_(tensors) {}

  // Prepares a write by an operator or a scoped fetch to this parameter's range, and marks the
  // range as edited. Waits for the commit that it awaits, and may block for a copy. Errors: of the
  // update, if it failed, and of the write-back.
  absl::Status Prepare(RangeId param);
  // Records a write that was not announced before. FAILED_PRECONDITION: the bytes that it overwrote
  // were stored nowhere else, so they are lost.
  absl::Status Note(RangeId param);
  // Returns whether the range, by its number, was edited since Forget.
  bool IsEdited(int64_t range) const;
  // Clears the edit: the range is updated in HOST, and nothing of it is on DEVICE.
  void Forget(int64_t range);

 private:
  // Returns its number if it has a master, else -1.
  int64_t Find(RangeId param) const;
  bool IsAnyOnDeviceAlone(const ModelRange& range) const;
  void Mark(int64_t range);

  ModelTensors& tensors_;
  mutable Mutex mutex_;
  std::vector<bool> edited_ ABSL_GUARDED_BY(mutex_);  // By number; false beyond the end.
};

}  // namespace gemini::client::hooks
