// SPDX-License-Identifier: Apache-2.0
#include "client/device_kernels_cuda.h"

#include <algorithm>

#include "client/cuda_call_scope.h"
#include "client/cuda_status.h"
#include "client/grad_norm.h"
#include "client/grad_norm_cuda.h"
#include "client/update_kernel_cuda.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// Sums that are fetched together: of half a billion elements, 4 MiB.
constexpr int64_t kMostSums = int64_t{1} << 19;
constexpr size_t kSumsBytes = kMostSums * sizeof(double);

absl::Status StatusOf(cudaError_t result, absl::string_view what) {
  if (result != cudaSuccess)
    ::cudaGetLastError();  // Else somebody takes it for an error of theirs.
  return CudaRuntimeStatus(result, what);
}

}  // namespace

DeviceKernelsCuda::~DeviceKernelsCuda() {
  const CudaCallScope scope(driver_, device_);
  ::cudaFree(sums_);
  ::cudaFreeHost(sums_in_host_);
}

void DeviceKernelsCuda::Update(const UpdateSettings& settings, const UpdateStreams& streams,
                               int64_t count) {
  if (!status_.ok()) return;
  const CudaCallScope scope(driver_, device_);
  status_ =
      StatusOf(EnqueueUpdate(settings, streams, count, compute_stream_()), "an update on the GPU");
}

absl::Status DeviceKernelsCuda::Finish() {
  const CudaCallScope scope(driver_, device_);
  status_.Update(StatusOf(::cudaStreamSynchronize(compute_stream_()), "updates on the GPU"));
  return std::exchange(status_, absl::OkStatus());
}

absl::Status DeviceKernelsCuda::MakeBuffers() {
  if (sums_ == nullptr) {
    GEMINI_RETURN_IF_ERROR(StatusOf(::cudaMalloc(reinterpret_cast<void**>(&sums_), kSumsBytes),
                                    "memory of the GPU for a norm"));
  }
  if (sums_in_host_ != nullptr) return absl::OkStatus();
  return StatusOf(
      ::cudaHostAlloc(reinterpret_cast<void**>(&sums_in_host_), kSumsBytes, cudaHostAllocDefault),
      "pinned memory for a norm");
}

absl::Status DeviceKernelsCuda::TakeSums(cudaStream_t stream, int64_t count,
                                         std::vector<double>& squares) {
  GEMINI_RETURN_IF_ERROR(
      StatusOf(::cudaMemcpyAsync(sums_in_host_, sums_, static_cast<size_t>(count) * sizeof(double),
                                 cudaMemcpyDeviceToHost, stream),
               "the sums of a norm"));
  GEMINI_RETURN_IF_ERROR(StatusOf(::cudaStreamSynchronize(stream), "a norm on the GPU"));
  squares.insert(squares.end(), sums_in_host_, sums_in_host_ + count);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> DeviceKernelsCuda::BlockSquaresOf(
    ElementType type, absl::Span<const GradientRun> runs) {
  const CudaCallScope scope(driver_, device_);
  GEMINI_RETURN_IF_ERROR(MakeBuffers());
  const cudaStream_t stream = compute_stream_();
  std::vector<double> squares;
  int64_t num_sums = 0;  // On their way.
  for (const GradientRun& run : runs) {
    for (int64_t done = 0; done < run.count;) {
      if (num_sums == kMostSums) {
        GEMINI_RETURN_IF_ERROR(TakeSums(stream, std::exchange(num_sums, 0), squares));
      }
      const int64_t count = std::min(run.count - done, (kMostSums - num_sums) * kNormBlockElements);
      GEMINI_RETURN_IF_ERROR(StatusOf(EnqueueBlockSquares(type, run.at + done * ElementBytes(type),
                                                          count, sums_ + num_sums, stream),
                                      "a norm on the GPU"));
      num_sums += NumNormBlocks(count);
      done += count;
    }
  }
  if (num_sums > 0) GEMINI_RETURN_IF_ERROR(TakeSums(stream, num_sums, squares));
  return squares;
}

}  // namespace gemini::client
