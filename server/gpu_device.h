// SPDX-License-Identifier: Apache-2.0
// A server whose DEVICE is a GPU. Here is what every build has: one without CUDA says so.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "server/server_options.h"

namespace gemini::server {

// Sets make_device and DEVICE's capacity of `options` for GPU `ordinal`, as CUDA counts them. `capacity_bytes`: without,
// three quarters of what is free on it now, for contexts of jobs and what they allocate themselves take the rest.
// UNIMPLEMENTED: this build has no CUDA, there is no driver, or it cannot share memory (docs/cuda.md). NOT_FOUND: there
// is no such GPU. INVALID_ARGUMENT: a capacity that it cannot have. UNAVAILABLE: the driver fails, or does not say what
// is free.
absl::Status UseGpu(int ordinal, std::optional<int64_t> capacity_bytes, ServerOptions& options);

}  // namespace gemini::server
