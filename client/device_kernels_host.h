// SPDX-License-Identifier: Apache-2.0
// DeviceKernels over host memory: the threads of a team compute, and all is done when a call returns.
#pragma once
#include <cstdint>
#include <vector>

#include "client/device_kernels.h"
#include "gemini/worker_team.h"

namespace gemini::client {

class DeviceKernelsHost : public DeviceKernels {
 public:
  // `team` outlives this.
  explicit DeviceKernelsHost(WorkerTeam& team) : team_(team) {}

  void Update(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) override;
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<double>> BlockSquaresOf(ElementType type,
                                                     absl::Span<const GradientRun> runs) override;

 private:
  WorkerTeam& team_;
};

}  // namespace gemini::client
