// SPDX-License-Identifier: Apache-2.0
// Parameters of 16 bits that others than updates write, as param.copy_() under NoGradGuard does.
// Which elements were written shows against the bytes before, which give the master its new values
// (client/host/edited_parameter.h): so a version that an update made on DEVICE, and that is there
// alone still, is written back before. And until its next update such a range is updated in HOST:
// copies of its master on DEVICE are stale from then on.
// Thread: any; one lock, held for no I/O. What is edited at the same time by two threads is theirs
//         to order.
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

  // An operator or a scoped fetch is to write to this parameter's range. Waits for the commit that
  // it awaits, and may block for a copy. Errors: of the update, which failed, and of the
  // write-back.
  absl::Status Prepare(RangeId param);
  // One has, that did not say so before. FAILED_PRECONDITION: what it wrote over was nowhere else.
  absl::Status Note(RangeId param);
  // Whether the range, by its number, was edited since Forget.
  bool IsEdited(int64_t range) const;
  // It is updated in HOST, and nothing of it is on DEVICE.
  void Forget(int64_t range);

 private:
  // Its number, if it has a master; -1.
  int64_t Find(RangeId param) const;
  bool IsAnyOnDeviceAlone(const ModelRange& range) const;
  void Mark(int64_t range);

  ModelTensors& tensors_;
  mutable Mutex mutex_;
  std::vector<bool> edited_ ABSL_GUARDED_BY(mutex_);  // By number; shorter: false.
};

}  // namespace gemini::client::hooks
