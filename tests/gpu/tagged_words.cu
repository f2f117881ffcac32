// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/tagged_words.h"

namespace gemini::client {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 64;

__global__ void FillKernel(uint64_t* words, int64_t num_words, uint64_t first, uint64_t step) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_words;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    words[i] = first + static_cast<uint64_t>(i) * step;
  }
}

__global__ void CountWrongKernel(const uint64_t* words, int64_t num_words, uint64_t first,
                                 uint64_t step, unsigned long long* wrong) {
  unsigned long long found = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_words;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    found += words[i] != first + static_cast<uint64_t>(i) * step ? 1 : 0;
  }
  if (found > 0) atomicAdd(wrong, found);
}

}  // namespace

cudaError_t FillTaggedWords(uint64_t* words, int64_t num_words, uint64_t first, uint64_t step,
                            cudaStream_t stream) {
  FillKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, first, step);
  return ::cudaGetLastError();
}

cudaError_t CountWrongWords(const uint64_t* words, int64_t num_words, uint64_t first, uint64_t step,
                            unsigned long long* wrong, cudaStream_t stream) {
  CountWrongKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, first, step, wrong);
  return ::cudaGetLastError();
}

}  // namespace gemini::client
