// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/grad_norm_cuda.h"

#include "client/kernels/grad_norm.h"
#include "client/kernels/lane_cuda.h"
#include "client/kernels/trust_squares_cuda.h"
#include "client/kernels/update_rules.h"
#include "client/kernels/update_run_cuda.h"
#include "client/kernels/update_scalars.h"

namespace gemini::client {
namespace {

constexpr int kLanes = static_cast<int>(kNormLanes);
// Norm blocks of one block of threads: as many as fill it.
constexpr int kThreads = 256;
constexpr int kBlocks = kThreads / kLanes;

// The elements of a norm block that a thread adds: element i is of lane i % kLanes, in order of i.
// Threads side by side read side by side.
struct LaneElements {
  int lane;
  int64_t block, begin, end;

  __device__ explicit LaneElements(int64_t count)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        block(int64_t{blockIdx.x} * kBlocks + threadIdx.x / kLanes),
        begin(block * kNormBlockElements),
        end(begin + kNormBlockElements < count ? begin + kNormBlockElements : count) {}
};

// The sums of a block's lanes in order; a NaN is always the same one. All threads of a warp call
// it.
__device__ double SumOfLanes(double sum) {
  double all = 0;
  for (int i = 0; i < kLanes; ++i) {
    all = __dadd_rn(all, __shfl_sync(0xffffffff, sum, i, kLanes));
  }
  return all != all ? __longlong_as_double(0x7ff8000000000000) : all;
}

__global__ void __launch_bounds__(kThreads)
    Squares(ElementType type, const void* piece, int64_t count, double* sums) {
  const LaneElements at(count);
  double sum = 0;
#pragma unroll 8
  for (int64_t i = at.begin + at.lane; i < at.end; i += kLanes) {
    float x[1];
    LoadElements(type, piece, i, x);
    // The square is exact: fused or not, one rounding.
    sum = __fma_rn(double{x[0]}, double{x[0]}, sum);
  }
  const double all = SumOfLanes(sum);
  if (at.lane == 0 && at.begin < count) sums[at.block] = all;
}

template <typename Rule>
__global__ void __launch_bounds__(kThreads)
    TrustSquaresOf(const UpdateScalars scalars, const TrustStreams streams, int64_t count,
                   double* param_sums, double* direction_sums) {
  const Rule rule(scalars);
  const LaneElements at(count);
  double param = 0, direction = 0;
#pragma unroll 4
  for (int64_t i = at.begin + at.lane; i < at.end; i += kLanes) {
    AddTrustSquares(rule, streams, i, param, direction);
  }
  const double all_param = SumOfLanes(param), all_direction = SumOfLanes(direction);
  if (at.lane != 0 || at.begin >= count) return;
  param_sums[at.block] = all_param;
  direction_sums[at.block] = all_direction;
}

cudaLaunchConfig_t LaunchOf(int64_t count, cudaStream_t stream) {
  cudaLaunchConfig_t launch = {};
  launch.gridDim = static_cast<unsigned>((NumNormBlocks(count) + kBlocks - 1) / kBlocks);
  launch.blockDim = kThreads;
  launch.stream = stream;
  return launch;
}

}  // namespace

cudaError_t EnqueueBlockSquares(ElementType type, const void* piece, int64_t count, double* sums,
                                cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const cudaLaunchConfig_t launch = LaunchOf(count, stream);
  return ::cudaLaunchKernelEx(&launch, Squares, type, piece, count, sums);
}

cudaError_t EnqueueTrustSquares(const UpdateSettings& settings, const TrustStreams& streams,
                                int64_t count, double* param_sums, double* direction_sums,
                                cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const cudaLaunchConfig_t launch = LaunchOf(count, stream);
  const UpdateScalars scalars = ScalarsOf(settings);
  const auto kernel = settings.kind == OptimizerKind::kLamb ? &TrustSquaresOf<LambRule<LaneCuda>>
                                                            : &TrustSquaresOf<LarsRule<LaneCuda>>;
  return ::cudaLaunchKernelEx(&launch, kernel, scalars, streams, count, param_sums, direction_sums);
}

}  // namespace gemini::client
