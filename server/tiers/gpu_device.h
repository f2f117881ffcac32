// SPDX-License-Identifier: Apache-2.0
// Sets up a server whose DEVICE is a GPU. Every build has this header; one that was built without
// CUDA answers with an error that says so.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "server/loop/server_options.h"

namespace gemini::server {

// Sets make_device, gpu_memory_rate and DEVICE's capacity in `options` for GPU `ordinal`, as CUDA
// counts them. Without `capacity_bytes` the capacity is fifteen sixteenths of the GPU's free
// memory. It can be that much, because a lease also includes what its job allocates by itself. If
// the GPU's memory cannot be shared, make_device logs that and makes a store that only counts
// (docs/cuda.md).
// UNIMPLEMENTED: this build has no CUDA, or there is no driver. NOT_FOUND: there is no such GPU.
// INVALID_ARGUMENT: a capacity that it cannot have. UNAVAILABLE: the driver fails, or does not say
// what is free.
absl::Status UseGpu(int ordinal, std::optional<int64_t> capacity_bytes, ServerOptions& options);

}  // namespace gemini::server
