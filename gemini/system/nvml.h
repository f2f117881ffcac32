// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's management library says of a GPU, which takes no context. The library is a part of
// the driver; it is looked for when first asked, and never linked.
// Thread: any.
// Units:  bytes, seconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace gemini {

struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // Now: others may take it.
};

// `uuid`: of a GPU or of a MIG instance, as 8-4-4-4-12 hexadecimal digits. UNIMPLEMENTED: there is
// no such library, or one without what is needed. NOT_FOUND: it knows no such GPU. UNAVAILABLE: it
// fails otherwise.
absl::StatusOr<GpuMemory> ReadGpuMemory(const std::string& uuid);

struct GpuUse {
  GpuMemory memory;
  // Nothing: this GPU or its driver does not say.
  std::optional<int> busy_percent;  // Of the last second or less: while a kernel ran.
  // Over its link, of all processes, in some 20 ms.
  std::optional<int64_t> to_gpu_bytes_per_second;
  std::optional<int64_t> from_gpu_bytes_per_second;
};

// As ReadGpuMemory; takes some 40 ms.
absl::StatusOr<GpuUse> ReadGpuUse(const std::string& uuid);

}  // namespace gemini
