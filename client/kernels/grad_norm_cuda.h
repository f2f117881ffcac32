// SPDX-License-Identifier: Apache-2.0
// Computes the sums of squares of client/kernels/grad_norm.h and client/kernels/trust_ratio.h on a
// GPU, with the same blocks, lanes and order, and so the same bits.
// Memory, stream, errors: as client/kernels/update_kernel_cuda.h.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "client/kernels/trust_streams.h"
#include "client/kernels/update_kernel.h"
#include "gemini/element_type.h"

namespace gemini::client {

// Enqueues what BlockSquares does: `count` elements of `type` in, NumNormBlocks(count) `sums` out.
cudaError_t EnqueueBlockSquares(ElementType type, const void* piece, int64_t count, double* sums,
                                cudaStream_t stream);

// Enqueues what FindTrustSquares does: `count` elements in, NumNormBlocks(count) sums of each kind
// out.
cudaError_t EnqueueTrustSquares(const UpdateSettings& settings, const TrustStreams& streams,
                                int64_t count, double* param_sums, double* direction_sums,
                                cudaStream_t stream);

}  // namespace gemini::client
