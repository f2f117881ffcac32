// SPDX-License-Identifier: Apache-2.0
#include "client/copy/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace gemini::client {

absl::Status CudaRuntimeStatus(cudaError_t result, absl::string_view what) {
  if (result == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", ::cudaGetErrorName(result), ": ", ::cudaGetErrorString(result));
  switch (result) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return absl::NotFoundError(message);
    case cudaErrorInsufficientDriver:
    case cudaErrorNotSupported:
      return absl::UnimplementedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace gemini::client
