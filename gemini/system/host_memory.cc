// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Nothing where the file is missing or says "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::string text = ReadAll(path);
  int64_t number;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return std::nullopt;
  return number;
}

// What one group allows and leaves free. Its page cache counts as used in `current`, yet the kernel
// drops it under pressure: inactive file pages are added back.
std::optional<HostMemory> OfGroup(const std::string& folder, const char* limit_name,
                                  const char* current_name, absl::string_view cache_key) {
  const std::optional<int64_t> limit = ReadNumber(absl::StrCat(folder, "/", limit_name));
  const std::optional<int64_t> current = ReadNumber(absl::StrCat(folder, "/", current_name));
  if (!limit.has_value() || !current.has_value()) return std::nullopt;
  int64_t cache = 0;
  const std::string stat = ReadAll(absl::StrCat(folder, "/memory.stat"));
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    if (absl::StartsWith(line, absl::StrCat(cache_key, " "))) {
      (void)absl::SimpleAtoi(line.substr(cache_key.size() + 1), &cache);
    }
  }
  return HostMemory{
      .total_bytes = *limit,
      .available_bytes = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *current - cache))};
}

absl::StatusOr<HostMemory> ReadMachineMemoryIn(absl::string_view proc) {
  HostMemory memory = {.total_bytes = -1, .available_bytes = -1};
  const std::string meminfo = ReadAll(absl::StrCat(proc, "/meminfo"));
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib;
    if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &kib)) continue;
    if (fields[0] == "MemTotal:") memory.total_bytes = kib * 1024;
    if (fields[0] == "MemAvailable:") memory.available_bytes = kib * 1024;
  }
  if (memory.available_bytes < 0 || memory.total_bytes < 0) {
    return absl::InternalError(absl::StrCat(proc, "/meminfo has no MemTotal or no MemAvailable"));
  }
  return memory;
}

}  // namespace

absl::StatusOr<HostMemory> ReadHostMemoryIn(absl::string_view proc, absl::string_view cgroup) {
  GEMINI_ASSIGN_OR_RETURN(HostMemory memory, ReadMachineMemoryIn(proc));
  // Each line is "hierarchy:controllers:path". A limit on any folder above counts too.
  const std::string groups = ReadAll(absl::StrCat(proc, "/self/cgroup"));
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool v2 = fields[0] == "0" && fields[1].empty();
    if (!v2 && !absl::StrContains(absl::StrCat(",", fields[1], ","), ",memory,")) continue;
    const std::string root = v2 ? std::string(cgroup) : absl::StrCat(cgroup, "/memory");
    std::string path = fields[2];
    while (true) {
      const std::string folder = absl::StrCat(root, path);
      const std::optional<HostMemory> group =
          v2 ? OfGroup(folder, "memory.max", "memory.current", "inactive_file")
             : OfGroup(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                       "total_inactive_file");
      if (group.has_value() && group->available_bytes < memory.available_bytes) memory = *group;
      if (path.empty() || path == "/") break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return memory;
}

absl::StatusOr<HostMemory> ReadHostMemory() { return ReadHostMemoryIn("/proc", "/sys/fs/cgroup"); }

absl::StatusOr<int64_t> AvailableHostMemory() {
  GEMINI_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  return memory.available_bytes;
}

absl::StatusOr<HostMemory> ReadMachineMemory() { return ReadMachineMemoryIn("/proc"); }

bool SharesControlGroups(pid_t pid) {
  const std::string groups = ReadAll(absl::StrCat("/proc/", pid, "/cgroup"));
  return !groups.empty() && groups == ReadAll("/proc/self/cgroup");
}

int64_t KeptBytes(const HostMemory& memory) {
  return static_cast<int64_t>(static_cast<double>(memory.total_bytes) * (1 - kMaxUsedFraction));
}

int64_t DefaultDeviceBytes(const HostMemory& memory, int64_t host_bytes) {
  const int64_t available_bytes = memory.available_bytes;
  const int64_t left_bytes =
      std::max<int64_t>(0, available_bytes - KeptBytes(memory) - available_bytes / 32);
  // Segments, and chunks that are not full, take some HOST beside what is asked for.
  const int64_t taken_bytes = std::min(host_bytes, left_bytes);
  return std::max(available_bytes / 16,
                  std::min(available_bytes / 4, left_bytes - taken_bytes - taken_bytes / 32));
}

}  // namespace gemini
