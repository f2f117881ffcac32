// SPDX-License-Identifier: Apache-2.0
// The seam for computing on chunks where DEVICE is: updates in place, and the sums of squares for
// the gradient norm and trust ratios. The arithmetic and the bits are the same everywhere. Host
// memory that plays DEVICE uses a team of threads (device_kernels_host.h), a GPU kernels of its own
// (device_kernels_cuda.h).
// Thread: any, one at a time.
// Order: as operators that the calling thread begins.
// Memory: DEVICE's. It is the caller's, and must live until the requested work is done.
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

// Consecutive elements of a tensor, from the beginning of one of its norm blocks.
struct GradientRun {
  const std::byte* at = nullptr;
  int64_t count = 0;
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Begins what UpdateElements does.
  virtual void Update(const UpdateSettings& settings, const UpdateStreams& streams,
                      int64_t count) = 0;
  // Blocks until all updates are done. RESOURCE_EXHAUSTED: the GPU had no memory for a kernel.
  // UNAVAILABLE: it failed. The values that were to be updated are then lost.
  virtual absl::Status Finish() = 0;

  // Returns from how many elements on a gradient's squares are better summed on DEVICE before it
  // leaves than in HOST afterwards.
  virtual int64_t least_summed_elements() const = 0;
  // Begins what BlockSquares does, into `sums` on DEVICE. Any number of threads at a time.
  // UNAVAILABLE: the GPU failed.
  virtual absl::Status BeginBlockSquares(ElementType type, const GradientRun& run,
                                         double* sums) = 0;
  // Returns what BlockSquares computes for each run, one after the other. Blocks. Errors: as
  // Finish.
  virtual absl::StatusOr<std::vector<double>> BlockSquaresOf(
      ElementType type, absl::Span<const GradientRun> runs) = 0;
  // Returns what FindTrustSquares computes for each run, one after the other, for fp32 moments.
  // Blocks. Errors: as Finish.
  virtual absl::StatusOr<TrustSquares> TrustSquaresOf(absl::Span<const TrustRun> runs) = 0;
};

}  // namespace gemini::client
