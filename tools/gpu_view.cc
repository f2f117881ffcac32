// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu_view.h"

#include <cstdint>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"

namespace gemini::tools {
namespace {

using nlohmann::json;

std::string RateText(const std::optional<int64_t>& bytes_per_second) {
  return bytes_per_second ? absl::StrCat(FormatByteSize(*bytes_per_second), "/s") : "?";
}

template <typename T>
json OrNull(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

}  // namespace

std::string GpuText(absl::string_view uuid, bool is_counted, const absl::StatusOr<GpuUse>& use) {
  std::string text = absl::StrCat("\nGPU ", absl::CEscape(uuid), ": ");
  if (use.ok()) {
    absl::StrAppend(&text, use->busy_percent ? absl::StrCat(*use->busy_percent, "% busy, ") : "",
                    FormatByteSize(use->memory.total_bytes - use->memory.free_bytes), " of ",
                    FormatByteSize(use->memory.total_bytes), " used; over its link ",
                    RateText(use->to_gpu_bytes_per_second), " to it, ",
                    RateText(use->from_gpu_bytes_per_second), " back\n");
  } else {
    absl::StrAppend(&text, absl::CEscape(std::string(use.status().message())), "\n");
  }
  if (is_counted) text += "  its memory is counted, not shared: slabs are their jobs' own\n";
  return text;
}

json GpuJson(absl::string_view uuid, bool is_counted, const absl::StatusOr<GpuUse>& use) {
  json object = {{"uuid", absl::CEscape(uuid)}, {"is_counted", is_counted}};
  if (!use.ok()) {
    object["error"] = absl::CEscape(std::string(use.status().message()));
    return object;
  }
  object["used_bytes"] = use->memory.total_bytes - use->memory.free_bytes;
  object["total_bytes"] = use->memory.total_bytes;
  object["busy_percent"] = OrNull(use->busy_percent);
  object["bytes_to_gpu_per_second"] = OrNull(use->to_gpu_bytes_per_second);
  object["bytes_from_gpu_per_second"] = OrNull(use->from_gpu_bytes_per_second);
  return object;
}

}  // namespace gemini::tools
