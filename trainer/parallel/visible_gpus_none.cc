// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "trainer/parallel/visible_gpus.h"

namespace gemini::trainer {

absl::StatusOr<std::vector<std::string>> VisibleGpus() {
  return absl::UnimplementedError(
      "this build has no CUDA: build where CUDA's toolkit is, or leave --device out");
}

}  // namespace gemini::trainer
