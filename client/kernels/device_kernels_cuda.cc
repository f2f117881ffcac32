// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/device_kernels_cuda.h"

#include <algorithm>

#include "client/copy/cuda_call_scope.h"
#include "client/copy/cuda_status.h"
#include "client/kernels/grad_norm.h"
#include "client/kernels/grad_norm_cuda.h"
#include "client/kernels/update_kernel_cuda.h"
#include "gemini/system/status_macros.h"

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

// Has enqueue(run, first element, elements, its first sum) compute the sums of whole norm blocks,
// if not to a run's end, and take(sums) fetch them when there are `most_sums`, and at the end.
template <typename Run, typename Enqueue, typename Take>
absl::Status InBatches(absl::Span<const Run> runs, int64_t most_sums, const Enqueue& enqueue,
                       const Take& take) {
  int64_t num_sums = 0;  // On their way.
  for (const Run& run : runs) {
    for (int64_t done = 0; done < run.count;) {
      if (num_sums == most_sums) GEMINI_RETURN_IF_ERROR(take(std::exchange(num_sums, 0)));
      const int64_t count = std::min(run.count - done, (most_sums - num_sums) * kNormBlockElements);
      GEMINI_RETURN_IF_ERROR(enqueue(run, done, count, num_sums));
      num_sums += NumNormBlocks(count);
      done += count;
    }
  }
  return num_sums > 0 ? take(num_sums) : absl::OkStatus();
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

absl::Status DeviceKernelsCuda::TakeSums(cudaStream_t stream, int64_t first, int64_t count,
                                         std::vector<double>& squares) {
  GEMINI_RETURN_IF_ERROR(StatusOf(
      ::cudaMemcpyAsync(sums_in_host_, sums_ + first, static_cast<size_t>(count) * sizeof(double),
                        cudaMemcpyDeviceToHost, stream),
      "the sums of a norm"));
  GEMINI_RETURN_IF_ERROR(StatusOf(::cudaStreamSynchronize(stream), "a norm on the GPU"));
  squares.insert(squares.end(), sums_in_host_, sums_in_host_ + count);
  return absl::OkStatus();
}

absl::Status DeviceKernelsCuda::BeginBlockSquares(ElementType type, const GradientRun& run,
                                                  double* sums) {
  const CudaCallScope scope(driver_, device_);
  return StatusOf(EnqueueBlockSquares(type, run.at, run.count, sums, compute_stream_()),
                  "a norm on the GPU");
}

absl::StatusOr<std::vector<double>> DeviceKernelsCuda::BlockSquaresOf(
    ElementType type, absl::Span<const GradientRun> runs) {
  const CudaCallScope scope(driver_, device_);
  GEMINI_RETURN_IF_ERROR(MakeBuffers());
  const cudaStream_t stream = compute_stream_();
  std::vector<double> squares;
  GEMINI_RETURN_IF_ERROR(InBatches(
      runs, kMostSums,
      [&](const GradientRun& run, int64_t begin, int64_t count, int64_t first_sum) {
        return StatusOf(EnqueueBlockSquares(type, run.at + begin * ElementBytes(type), count,
                                            sums_ + first_sum, stream),
                        "a norm on the GPU");
      },
      [&](int64_t num_sums) { return TakeSums(stream, 0, num_sums, squares); }));
  return squares;
}

absl::StatusOr<TrustSquares> DeviceKernelsCuda::TrustSquaresOf(absl::Span<const TrustRun> runs) {
  const CudaCallScope scope(driver_, device_);
  GEMINI_RETURN_IF_ERROR(MakeBuffers());
  const cudaStream_t stream = compute_stream_();
  // Those of parameters, and behind them those of directions.
  constexpr int64_t kMostOfEach = kMostSums / 2;
  TrustSquares squares;
  GEMINI_RETURN_IF_ERROR(InBatches(
      runs, kMostOfEach,
      [&](TrustRun run, int64_t begin, int64_t count, int64_t first_sum) {
        run.first += begin;
        run.count = count;
        double* const sums = sums_ + first_sum;
        return StatusOf(EnqueueTrustSquares(run.settings, TrustStreamsOf(run), count, sums,
                                            sums + kMostOfEach, stream),
                        "trust ratios on the GPU");
      },
      [&](int64_t num_sums) {
        absl::Status status = TakeSums(stream, 0, num_sums, squares.param);
        status.Update(TakeSums(stream, kMostOfEach, num_sums, squares.direction));
        return status;
      }));
  return squares;
}

}  // namespace gemini::client
