// SPDX-License-Identifier: Apache-2.0
// Sets up a server whose DEVICE is a GPU, as gpu_device.h does, with a driver that the caller
// passes.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "gemini/system/cuda_driver.h"
#include "server/loop/server_options.h"

namespace gemini::server {

// As UseGpu; `driver` outlives every server of these options.
absl::Status UseGpuOf(const CudaDriver& driver, int ordinal, std::optional<int64_t> capacity_bytes,
                      ServerOptions& options);

}  // namespace gemini::server
