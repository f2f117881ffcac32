// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/update_kernel_cuda.h"

#include <algorithm>

#include "client/kernels/update_run_cuda.h"
#include "client/kernels/update_scalars.h"
#include "client/kernels/with_formats.h"

namespace gemini::client {
namespace {

constexpr int kThreads = 256;
// Elements a thread moves at once: 16 bytes of an fp32 stream, the most that one instruction takes.
constexpr int kRun = 4;
// Fewer blocks than a grid may have in any GPU; each thread goes on from run to run.
constexpr int64_t kMostBlocks = 1 << 20;

template <typename Rule>
__global__ void __launch_bounds__(kThreads)
    Update(const UpdateScalars scalars, const UpdateStreams streams, int64_t num_runs,
           int64_t count) {
  const Rule rule(scalars);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  for (int64_t run = thread; run < num_runs; run += num_threads) {
    UpdateRun<kRun>(rule, streams, run * kRun);
  }
  for (int64_t i = num_runs * kRun + thread; i < count; i += num_threads) {
    UpdateRun<1>(rule, streams, i);
  }
}

bool IsAligned(const void* stream, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(stream) % static_cast<uintptr_t>(kRun * element_bytes) == 0;
}

bool AreAligned(const UpdateStreams& s) {
  const int64_t param_bytes = ElementBytes(s.param_type);
  const int64_t master_bytes = MasterBytes(s.param_type);
  return IsAligned(s.param, param_bytes) && IsAligned(s.new_param, param_bytes) &&
         IsAligned(s.master, master_bytes) && IsAligned(s.new_master, master_bytes) &&
         IsAligned(s.grad, ElementBytes(s.grad_type)) && IsAligned(s.exp_avg, 4) &&
         IsAligned(s.new_exp_avg, 4) && IsAligned(s.exp_avg_sq, 4) &&
         IsAligned(s.new_exp_avg_sq, 4);
}

}  // namespace

cudaError_t EnqueueUpdate(const UpdateSettings& settings, const UpdateStreams& streams,
                          int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int64_t num_runs = AreAligned(streams) ? count / kRun : 0;
  const int64_t num_tasks = std::max(num_runs, count - num_runs * kRun);
  const auto num_blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (num_tasks + kThreads - 1) / kThreads));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = num_blocks;
  launch.blockDim = kThreads;
  launch.stream = stream;
  const UpdateScalars scalars = ScalarsOf(settings);
  cudaError_t result = cudaSuccess;
  WithRule<LaneCuda>(settings.kind, [&]<typename Rule>() {
    result = ::cudaLaunchKernelEx(&launch, Update<Rule>, scalars, streams, num_runs, count);
  });
  return result;
}

}  // namespace gemini::client
