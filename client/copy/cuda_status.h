// SPDX-License-Identifier: Apache-2.0
// Converts results of the CUDA runtime to absl::Status.
#pragma once
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini::client {

// Returns "<what>: <name of the error>: <its description>". cudaErrorMemoryAllocation:
// RESOURCE_EXHAUSTED. cudaErrorNoDevice, ...InvalidDevice: NOT_FOUND. cudaErrorInsufficientDriver,
// ...NotSupported: UNIMPLEMENTED. Others: UNAVAILABLE, for most mean that this process cannot use
// the GPU any more. cudaSuccess: OK.
absl::Status CudaRuntimeStatus(cudaError_t result, absl::string_view what);

}  // namespace gemini::client
