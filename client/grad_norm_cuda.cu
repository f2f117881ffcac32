// SPDX-License-Identifier: Apache-2.0
#include "client/grad_norm_cuda.h"

#include "client/grad_norm.h"
#include "client/update_run_cuda.h"

namespace gemini::client {
namespace {

constexpr int kLanes = static_cast<int>(kNormLanes);
// Norm blocks of one block of threads: as many as fill it.
constexpr int kThreads = 256;
constexpr int kBlocks = kThreads / kLanes;

// A thread a lane: element i of a norm block is added by thread i % kLanes, in order of i. Threads side by side read
// side by side.
__global__ void __launch_bounds__(kThreads)
    Squares(ElementType type, const void* piece, int64_t count, double* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t block = int64_t{blockIdx.x} * kBlocks + threadIdx.x / kLanes;
  const int64_t begin = block * kNormBlockElements;
  const int64_t end = begin + kNormBlockElements < count ? begin + kNormBlockElements : count;
  double sum = 0;
#pragma unroll 8
  for (int64_t i = begin + lane; i < end; i += kLanes) {
    float x[1];
    LoadElements(type, piece, i, x);
    // The square is exact: fused or not, one rounding.
    sum = __fma_rn(double{x[0]}, double{x[0]}, sum);
  }
  double all = 0;
  for (int i = 0; i < kLanes; ++i) {
    all = __dadd_rn(all, __shfl_sync(0xffffffff, sum, i, kLanes));
  }
  if (lane != 0 || begin >= count) return;
  sums[block] = all != all ? __longlong_as_double(0x7ff8000000000000) : all;
}

}  // namespace

cudaError_t EnqueueBlockSquares(ElementType type, const void* piece, int64_t count, double* sums,
                                cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto num_blocks = static_cast<unsigned>((NumNormBlocks(count) + kBlocks - 1) / kBlocks);
  cudaLaunchConfig_t launch = {};
  launch.gridDim = num_blocks;
  launch.blockDim = kThreads;
  launch.stream = stream;
  return ::cudaLaunchKernelEx(&launch, Squares, type, piece, count, sums);
}

}  // namespace gemini::client
