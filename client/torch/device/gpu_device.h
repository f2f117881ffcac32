// SPDX-License-Identifier: Apache-2.0
// Makes a GPU a session's device. Chunks are in slabs that the server made, and what else the
// process uses of the GPU (CUDA's context, Torch's caching allocator) is limited to the rest of the
// lease. In a build without CUDA, OpenGpu fails.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/hook/session_device.h"

namespace gemini::client::hooks {

// Opens GPU `ordinal`, as CUDA counts them, and makes the process's context on it. Call it before
// any other call of Torch that looks for a GPU, a backward pass included, unless the program is
// linked with libtorch_cuda. UNIMPLEMENTED: this build has no CUDA, there is no driver, or it is
// too old. NOT_FOUND: there is no such GPU. FAILED_PRECONDITION: Torch has already concluded that
// there is none. UNAVAILABLE: the driver or Torch's part of CUDA fails.
absl::StatusOr<std::shared_ptr<SessionDevice>> OpenGpu(int ordinal);

}  // namespace gemini::client::hooks
