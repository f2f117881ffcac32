// SPDX-License-Identifier: Apache-2.0
// The kernels that probes run. Each is enqueued on `stream` and does not wait.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace gemini::probe {

// words[i] = value, for all of num_words.
void FillWords(uint32_t* words, int64_t num_words, uint32_t value, cudaStream_t stream);
// *count += how many words are `value`.
void CountWords(const uint32_t* words, int64_t num_words, uint32_t value, unsigned long long* count,
                cudaStream_t stream);
// Keeps one multiprocessor busy for so long by the GPU's clock.
void Spin(int64_t nanoseconds, cudaStream_t stream);

}  // namespace gemini::probe
