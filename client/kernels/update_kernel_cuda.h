// SPDX-License-Identifier: Apache-2.0
// Updates a run of elements of one tensor on a GPU, with the formulas and the bits of
// client/kernels/update_kernel.h.
// Stream: work is enqueued on it, after its earlier work; nothing waits on the host. Its GPU is the
// calling thread's current one.
// Memory: the streams are in the GPU's memory. They move fastest if each is aligned to four
// elements, as pieces of tensors are.
// Errors: of the launch. Later errors, such as an access to memory that is not mapped, are reported
// by a wait for the stream.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "client/kernels/update_kernel.h"

namespace gemini::client {

// Enqueues the update of `count` elements.
cudaError_t EnqueueUpdate(const UpdateSettings& settings, const UpdateStreams& streams,
                          int64_t count, cudaStream_t stream);

}  // namespace gemini::client
