// SPDX-License-Identifier: Apache-2.0
// Computes FoldSum (exact_sum.h) on a GPU, with the same bits.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Enqueues it. All memory is of the current GPU.
cudaError_t FoldSumCuda(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
                        std::byte* sum, cudaStream_t stream);

}  // namespace gemini::trainer
