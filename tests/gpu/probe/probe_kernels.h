// SPDX-License-Identifier: Apache-2.0
// The kernels that probes run. Each is enqueued on `stream`, or refused, and does not wait.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace gemini::probe {

// words[i] = value, for all of num_words.
cudaError_t FillWords(uint32_t* words, int64_t num_words, uint32_t value, cudaStream_t stream);
// *count += how many words are `value`.
cudaError_t CountWords(const uint32_t* words, int64_t num_words, uint32_t value,
                       unsigned long long* count, cudaStream_t stream);
// *started = 1, which the host may watch; then keeps one multiprocessor busy for so long by the
// GPU's clock.
cudaError_t Spin(int64_t nanoseconds, uint32_t* started, cudaStream_t stream);

}  // namespace gemini::probe
