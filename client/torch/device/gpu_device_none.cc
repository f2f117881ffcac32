// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "client/torch/device/gpu_device.h"

namespace gemini::client::hooks {

absl::StatusOr<std::shared_ptr<SessionDevice>> OpenGpu(int ordinal) {
  return absl::UnimplementedError(absl::StrCat(
      "cuda:", ordinal, ": this build has no CUDA: configure it with -DGEMINI_WITH_CUDA=ON"));
}

}  // namespace gemini::client::hooks
