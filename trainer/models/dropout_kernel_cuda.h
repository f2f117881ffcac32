// SPDX-License-Identifier: Apache-2.0
// Launches the kernels of dropout, without Torch.
// Stream: work is enqueued on it, after its earlier work; nothing waits on the host. Its GPU is the
// calling thread's current one.
// Errors: of the launch.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gemini/element_type.h"
#include "trainer/models/dropout_mask.h"

namespace gemini::trainer {

// Enqueues out[i] = in[i] times the factor of place i, for i in [0, count).
cudaError_t EnqueueDropout(const MaskFactors& factors, ElementType type, const void* in, void* out,
                           int64_t count, cudaStream_t stream);

// Enqueues the writing of the factors of the box's elements to `out`.
cudaError_t EnqueueFactors(const MaskFactors& factors, const MaskBox& box, float* out,
                           cudaStream_t stream);

}  // namespace gemini::trainer
