// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/probe_kernels.h"

namespace gemini::probe {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__device__ int64_t FirstIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ int64_t NumThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__global__ void FillWordsKernel(uint32_t* words, int64_t num_words, uint32_t value) {
  for (int64_t i = FirstIndex(); i < num_words; i += NumThreads()) words[i] = value;
}

__global__ void CountWordsKernel(const uint32_t* words, int64_t num_words, uint32_t value,
                                 unsigned long long* count) {
  unsigned long long found = 0;
  for (int64_t i = FirstIndex(); i < num_words; i += NumThreads()) {
    found += words[i] == value ? 1 : 0;
  }
  atomicAdd(count, found);
}

__device__ int64_t GpuNanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds, volatile uint32_t* started) {
  const int64_t until = GpuNanoseconds() + nanoseconds;
  *started = 1;
  __threadfence_system();
  while (GpuNanoseconds() < until) {
  }
}

}  // namespace

cudaError_t FillWords(uint32_t* words, int64_t num_words, uint32_t value, cudaStream_t stream) {
  FillWordsKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, value);
  return ::cudaGetLastError();
}

cudaError_t CountWords(const uint32_t* words, int64_t num_words, uint32_t value,
                       unsigned long long* count, cudaStream_t stream) {
  CountWordsKernel<<<kBlocks, kThreads, 0, stream>>>(words, num_words, value, count);
  return ::cudaGetLastError();
}

cudaError_t Spin(int64_t nanoseconds, uint32_t* started, cudaStream_t stream) {
  SpinKernel<<<1, 1, 0, stream>>>(nanoseconds, started);
  return ::cudaGetLastError();
}

}  // namespace gemini::probe
