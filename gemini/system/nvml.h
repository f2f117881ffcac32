// SPDX-License-Identifier: Apache-2.0
// Reads what NVIDIA's management library reports about a GPU, without a context. The library is
// part of the driver. It is loaded at the first call and never linked.
// Thread: any.
// Units: bytes, seconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace gemini {

struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // At the moment; others may take it.
};

// Returns the memory of the GPU or MIG instance `uuid`, written as 8-4-4-4-12 hexadecimal digits.
// UNIMPLEMENTED: there is no such library, or it lacks what is needed. NOT_FOUND: it has no such
// GPU. UNAVAILABLE: it fails otherwise.
absl::StatusOr<GpuMemory> ReadGpuMemory(const std::string& uuid);

struct GpuUse {
  GpuMemory memory;
  // A field has no value if this GPU or its driver does not report it.
  std::optional<int> busy_percent;  // Time in which a kernel ran, over the last second or less.
  // Over the GPU's link, for all processes, measured in some 20 ms.
  std::optional<int64_t> to_gpu_bytes_per_second;
  std::optional<int64_t> from_gpu_bytes_per_second;
};

// Returns memory and load. Errors as ReadGpuMemory; takes some 40 ms.
absl::StatusOr<GpuUse> ReadGpuUse(const std::string& uuid);

}  // namespace gemini
