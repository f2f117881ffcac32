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

// Measures the rates of the cost model. What cannot be measured keeps CostModel's default.
// HOST to DEVICE and back: copies between two arenas, as the host copy engine makes them. Updates
// go over the same arenas.
// NVME: writes up to 64 MiB to a nameless file in each directory and reads them, past the page
// cache where the file system allows that. The slowest directory counts.
// Updates: a loop over four arrays with as many threads as a client uses (update_team.h). Without a
// GPU the same rate serves for DEVICE.
// With a GPU (`gpu_memory_rate`: that of its memory in bytes a second, 0 if not known) the server
// makes no CUDA context. Copies then keep their default rates, with a GPU's latency, and updates on
// DEVICE are estimated from that rate. Returns early when `stop` returns true.
CostModel Calibrate(const std::vector<NvmeDirectory>& nvme_directories,
                    std::optional<double> gpu_memory_rate, absl::FunctionRef<bool()> stop);

}  // namespace gemini::server
