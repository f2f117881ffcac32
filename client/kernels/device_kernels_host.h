// SPDX-License-Identifier: Apache-2.0
// Implements DeviceKernels over host memory: the threads of a team compute, and the work is done
// when a call returns.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "client/kernels/device_kernels.h"
#include "gemini/system/worker_team.h"

namespace gemini::client {

class DeviceKernelsHost : public DeviceKernels {
 public:
  // `team` outlives this.
  explicit DeviceKernelsHost(WorkerTeam& team) : team_(team) {}

  void Update(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) override;
  absl::Status Finish() override { return absl::OkStatus(); }
  // No gradient's squares are summed here, because operators would wait for that. In HOST they are
  // summed while operators run.
  int64_t least_summed_elements() const override { return std::numeric_limits<int64_t>::max(); }
  absl::Status BeginBlockSquares(ElementType type, const GradientRun& run, double* sums) override;
  absl::StatusOr<std::vector<double>> BlockSquaresOf(ElementType type,
                                                     absl::Span<const GradientRun> runs) override;
  absl::StatusOr<TrustSquares> TrustSquaresOf(absl::Span<const TrustRun> runs) override;

 private:
  WorkerTeam& team_;
};

}  // namespace gemini::client
