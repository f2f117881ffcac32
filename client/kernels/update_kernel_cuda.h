// SPDX-License-Identifier: Apache-2.0
// The update of a run of elements of one tensor on a GPU: the formulas, and the bits, of
// client/kernels/update_kernel.h.
// Stream: work is enqueued on it, behind what it has; nothing waits on the host. Its GPU is the
//         calling thread's current one.
// Memory: the streams are the GPU's; aligned to four elements each, as pieces of tensors are, they
//         move fastest.
// Errors: of the launch. What goes wrong later, as on memory that is not mapped, whoever waits for
//         the stream hears.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "client/kernels/update_kernel.h"

namespace gemini::client {

// Enqueues the update of `count` elements.
cudaError_t EnqueueUpdate(const UpdateSettings& settings, const UpdateStreams& streams,
                          int64_t count, cudaStream_t stream);

}  // namespace gemini::client
