// SPDX-License-Identifier: Apache-2.0
// The sums of squares of client/grad_norm.h on a GPU: the same blocks, lanes and order, and so the same bits.
// Stream, errors: as client/update_kernel_cuda.h.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gemini/element_type.h"

namespace gemini::client {

// Enqueues what BlockSquares does: `count` elements of `type` in, NumNormBlocks(count) `sums` out, both in the
// GPU's memory.
cudaError_t EnqueueBlockSquares(ElementType type, const void* piece, int64_t count, double* sums,
                                cudaStream_t stream);

}  // namespace gemini::client
