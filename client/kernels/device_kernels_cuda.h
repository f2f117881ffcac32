// SPDX-License-Identifier: Apache-2.0
// Implements DeviceKernels on a GPU, by kernels on the stream of the calling thread's operators.
// Memory: a few MiB of the GPU and of HOST, from the first sums of squares on.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "client/kernels/device_kernels.h"
#include "gemini/system/cuda_driver.h"

namespace gemini::client {

class DeviceKernelsCuda final : public DeviceKernels {
 public:
  // Computes on GPU `device`, as the CUDA runtime counts them. `compute_stream` returns the stream
  // of the calling thread's operators. `driver` outlives this.
  DeviceKernelsCuda(const CudaDriver& driver, int device,
                    std::function<cudaStream_t()> compute_stream)
      : driver_(driver), device_(device), compute_stream_(std::move(compute_stream)) {}
  DeviceKernelsCuda(const DeviceKernelsCuda&) = delete;
  DeviceKernelsCuda& operator=(const DeviceKernelsCuda&) = delete;
  ~DeviceKernelsCuda() override;

  void Update(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) override;
  absl::Status Finish() override;
  // HOST sums the squares of fewer elements in less time than a thread takes to begin a kernel and
  // a copy, some 10 us. This is an estimate.
  int64_t least_summed_elements() const override { return int64_t{1} << 16; }
  absl::Status BeginBlockSquares(ElementType type, const GradientRun& run, double* sums) override;
  absl::StatusOr<std::vector<double>> BlockSquaresOf(ElementType type,
                                                     absl::Span<const GradientRun> runs) override;
  absl::StatusOr<TrustSquares> TrustSquaresOf(absl::Span<const TrustRun> runs) override;

 private:
  absl::Status MakeBuffers();
  // Appends `count` of the sums, from the first on, to `squares`, once the stream has computed
  // them.
  absl::Status TakeSums(cudaStream_t stream, int64_t first, int64_t count,
                        std::vector<double>& squares);

  const CudaDriver& driver_;
  const int device_;
  const std::function<cudaStream_t()> compute_stream_;
  absl::Status status_;             // The first error of an update since Finish.
  double* sums_ = nullptr;          // On the GPU.
  double* sums_in_host_ = nullptr;  // Pinned.
};

}  // namespace gemini::client
