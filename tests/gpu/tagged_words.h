// SPDX-License-Identifier: Apache-2.0
// The kernels of a job's operators. Each is enqueued on `stream`, or refused, and does not wait.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace gemini::client {

// words[i] = first + i * step, for all of num_words.
cudaError_t FillTaggedWords(uint64_t* words, int64_t num_words, uint64_t first, uint64_t step,
                            cudaStream_t stream);
// *wrong += how many words are not first + i * step.
cudaError_t CountWrongWords(const uint64_t* words, int64_t num_words, uint64_t first, uint64_t step,
                            unsigned long long* wrong, cudaStream_t stream);

}  // namespace gemini::client
