// SPDX-License-Identifier: Apache-2.0
// Describes a directory on an NVMe file system, and how much of it may be taken. Users write
// DIR:SIZE.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

struct NvmeDirectory {
  std::string path;
  int64_t capacity_bytes = 0;
  bool operator==(const NvmeDirectory&) const = default;
};

// Parses "/mnt/nvme:20GiB"; the last colon is the one that counts. INVALID_ARGUMENT: anything else,
// or no room.
absl::StatusOr<NvmeDirectory> ParseNvmeDirectory(absl::string_view text);

}  // namespace gemini
