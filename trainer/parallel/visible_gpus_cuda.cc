// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "gemini/system/cuda_driver.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/visible_gpus.h"

namespace gemini::trainer {

absl::StatusOr<std::vector<std::string>> VisibleGpus() {
  GEMINI_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Find());
  std::vector<std::string> uuids;
  while (true) {
    absl::StatusOr<std::string> uuid = CudaDeviceUuid(*driver, static_cast<int>(uuids.size()));
    if (absl::IsNotFound(uuid.status()) && !uuids.empty()) return uuids;
    GEMINI_RETURN_IF_ERROR(uuid.status());
    uuids.push_back(*std::move(uuid));
  }
}

}  // namespace gemini::trainer
