// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/gpu_device.h"

namespace gemini::server {

absl::Status UseGpu(int, std::optional<int64_t>, ServerOptions&) {
  return absl::UnimplementedError(
      "--device cuda: this program was built without CUDA: install the CUDA toolkit 13.0 and build "
      "it again with "
      "-DGEMINI_WITH_CUDA=ON");
}

}  // namespace gemini::server
