// SPDX-License-Identifier: Apache-2.0
// Shows in memstat the GPU whose memory is DEVICE: how busy it is and what goes over its link, as
// NVML has it for all processes together.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/nvml.h"
#include "nlohmann/json.hpp"

namespace gemini::tools {

// Shows GPU `uuid`, which a server named. `is_counted`: its memory cannot be shared there.
std::string GpuText(absl::string_view uuid, bool is_counted, const absl::StatusOr<GpuUse>& use);
// Keys: uuid, is_counted, used_bytes, total_bytes, busy_percent, bytes_to_gpu_per_second,
// bytes_from_gpu_per_second. A value is null if NVML does not report it. Or the only key is error.
nlohmann::json GpuJson(absl::string_view uuid, bool is_counted, const absl::StatusOr<GpuUse>& use);

}  // namespace gemini::tools
