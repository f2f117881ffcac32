// SPDX-License-Identifier: Apache-2.0
// Measures what this machine's memory and disks do: the cost model that plans begin with, until
// clients report what their steps measured.
// Thread: any; computes and writes for up to kCalibrationTime, so it runs on a worker.
#pragma once
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gemini/cost_model.h"
#include "server/loop/server_options.h"

namespace gemini::server {

inline constexpr absl::Duration kCalibrationTime = absl::Milliseconds(300);

// HOST to DEVICE and back: copies between two arenas, as the host copy engine does. NVME: up to 64
// MiB to a file without a name in each directory, not through the page cache where the file system
// can, and back. Updates, in HOST and in an arena: a loop over four arrays, by as many threads as a
// client takes for them (gemini/system/update_team.h). What cannot be measured keeps CostModel's
// own value. A server makes no context, so on a GPU (`gpu_memory_rate`: that of its memory, bytes a
// second; 0: not known) copies do so, and updates there are by that rate. Ends early when `stop`
// returns true.
CostModel Calibrate(const std::vector<NvmeDirectory>& nvme_directories,
                    std::optional<double> gpu_memory_rate, absl::FunctionRef<bool()> stop);

}  // namespace gemini::server
