// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/available_memory.h"

#include <fstream>
#include <string>

namespace gemini {

absl::StatusOr<int64_t> AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return absl::InternalError(
      "/proc/meminfo has no MemAvailable: say how much DEVICE and HOST memory is to be used");
}

}  // namespace gemini
