// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/probe_kernels.h"

namespace gemini::probe {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__global__ void FillWordsKernel(uint32_t* words, int64_t num_words, uint32_t value) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < num_words; i += step) {
    words[i] = value;
  }
}

__global__ void CountWordsKernel(const uint32_t* words, int64_t num_words, uint32_t value,
                                 unsigned long long* count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned long long found = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < num_words; i += step) {
    found += words[i] == value ? 1 : 0;
  }
  atomicAdd(count, found);
}

__device__ int64_t GpuNanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds) {
  const int64_t until = GpuNanoseconds() + nanoseconds;
  while (GpuNanoseconds() < until) {
  }
}

}  // namespace

void FillWords(uint32_t* words, int64_t num_words, uint32_t value, cudaStream_t stream) {
  FillWordsKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, value);
}

void CountWords(const uint32_t* words, int64_t num_words, uint32_t value,
                unsigned long long* count, cudaStream_t stream) {
  CountWordsKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, value, count);
}

void Spin(int64_t nanoseconds, cudaStream_t stream) { SpinKernel<<<1, 1, 0, stream>>>(nanoseconds); }

}  // namespace gemini::probe
