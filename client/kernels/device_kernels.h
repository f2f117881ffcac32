// SPDX-License-Identifier: Apache-2.0
// Defines the interface for computing on chunks on DEVICE: updates in place, and the sums of
// squares for the gradient norm and trust ratios. The arithmetic and the bits are the same
// everywhere. If DEVICE is an arena in host memory, a team of threads computes
// (device_kernels_host.h); a GPU runs kernels (device_kernels_cuda.h).
// Thread: any, one at a time.
// Order: work is ordered as operators that the calling thread begins.
// Memory: all streams and sums are on DEVICE. They belong to the caller, and must live until the
// requested work is done.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/kernels/trust_ratio.h"
#include "client/kernels/trust_run.h"
#include "client/kernels/update_kernel.h"
#include "gemini/element_type.h"

namespace gemini::client {

// Consecutive elements of a tensor's gradient, on DEVICE, from the beginning of one of the tensor's
// norm blocks.
struct GradientRun {
  const std::byte* at = nullptr;
  int64_t count = 0;
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Begins what UpdateElements does (client/kernels/update_kernel.h).
  virtual void Update(const UpdateSettings& settings, const UpdateStreams& streams,
                      int64_t count) = 0;
  // Blocks until all updates since the last Finish are done. RESOURCE_EXHAUSTED: the GPU had no
  // memory for a kernel. UNAVAILABLE: it failed. The values that were to be updated are then lost.
  virtual absl::Status Finish() = 0;

  // Returns the least number of elements of a gradient whose squares should be summed on DEVICE
  // before it leaves, and not in HOST afterwards.
  virtual int64_t least_summed_elements() const = 0;
  // Begins what BlockSquares does (client/kernels/grad_norm.h), into `sums` on DEVICE. Any number
  // of threads at a time. UNAVAILABLE: the GPU failed.
  virtual absl::Status BeginBlockSquares(ElementType type, const GradientRun& run,
                                         double* sums) = 0;
  // Returns what BlockSquares computes for each run, one after the other. Blocks. Errors: as
  // Finish.
  virtual absl::StatusOr<std::vector<double>> BlockSquaresOf(
      ElementType type, absl::Span<const GradientRun> runs) = 0;
  // Returns what FindTrustSquares computes for each run (client/kernels/trust_ratio.h), one after
  // the other. Moments must be fp32. Blocks. Errors: as Finish.
  virtual absl::StatusOr<TrustSquares> TrustSquaresOf(absl::Span<const TrustRun> runs) = 0;
};

}  // namespace gemini::client
