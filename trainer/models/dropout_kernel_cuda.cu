// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/dropout_kernel_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>

namespace gemini::trainer {
namespace {

constexpr int kThreads = 256;
// Fewer blocks than a grid may have in any GPU; each thread goes on from quad to quad.
constexpr int64_t kMostBlocks = 1 << 20;

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__half x) { return __half2float(x); }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void Store(float& out, float x) { out = x; }
__device__ void Store(__half& out, float x) { out = __float2half_rn(x); }
__device__ void Store(__nv_bfloat16& out, float x) { out = __float2bfloat16_rn(x); }

// A thread computes the four factors of a quad at once.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Drop(const MaskFactors factors, const T* in, T* out, int64_t count) {
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  for (int64_t quad = int64_t{blockIdx.x} * kThreads + threadIdx.x; quad * 4 < count;
       quad += num_threads) {
    const std::array<float, 4> four = factors.Quad(static_cast<uint64_t>(quad));
    for (int i = 0; i < 4 && quad * 4 + i < count; ++i) {
      Store(out[quad * 4 + i], ToFloat(in[quad * 4 + i]) * four[i]);
    }
  }
}

// A row may begin inside a quad: a thread computes that for each element.
__global__ void __launch_bounds__(kThreads)
    Fill(const MaskFactors factors, const MaskBox box, float* out, int64_t count) {
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += num_threads) {
    const int64_t place = box.RowAt(i / box.row_size) + i % box.row_size;
    out[i] = factors.Quad(static_cast<uint64_t>(place / 4))[place % 4];
  }
}

// For one thread a task.
cudaLaunchConfig_t LaunchOf(int64_t num_tasks, cudaStream_t stream) {
  cudaLaunchConfig_t launch = {};
  launch.gridDim =
      static_cast<unsigned>(std::min(kMostBlocks, (num_tasks + kThreads - 1) / kThreads));
  launch.blockDim = kThreads;
  launch.stream = stream;
  return launch;
}

template <typename T>
cudaError_t EnqueueDrop(const MaskFactors& factors, const void* in, void* out, int64_t count,
                        cudaStream_t stream) {
  const cudaLaunchConfig_t launch = LaunchOf((count + 3) / 4, stream);
  return ::cudaLaunchKernelEx(&launch, Drop<T>, factors, static_cast<const T*>(in),
                              static_cast<T*>(out), count);
}

}  // namespace

cudaError_t EnqueueDropout(const MaskFactors& factors, ElementType type, const void* in, void* out,
                           int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (type) {
    case ElementType::kFp32:
      return EnqueueDrop<float>(factors, in, out, count, stream);
    case ElementType::kBf16:
      return EnqueueDrop<__nv_bfloat16>(factors, in, out, count, stream);
    case ElementType::kFp16:
      return EnqueueDrop<__half>(factors, in, out, count, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t EnqueueFactors(const MaskFactors& factors, const MaskBox& box, float* out,
                           cudaStream_t stream) {
  const int64_t count = box.planes * box.rows * box.row_size;
  if (count == 0) return cudaSuccess;
  const cudaLaunchConfig_t launch = LaunchOf(count, stream);
  return ::cudaLaunchKernelEx(&launch, Fill, factors, box, out, count);
}

}  // namespace gemini::trainer
