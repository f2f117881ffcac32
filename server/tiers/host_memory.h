// SPDX-License-Identifier: Apache-2.0
// How much memory this process could still take: the machine's and its control group's word.
// Thread: any. Reads /proc and /sys, which never wait for a disk.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::server {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};

// Returns that of the machine or of the control group above us (v2, else v1) that leaves the least.
// INTERNAL: /proc/meminfo says nothing.
absl::StatusOr<HostMemory> ReadHostMemory();
absl::StatusOr<int64_t> AvailableHostMemory();  // Of it.

// As above, with the two trees elsewhere: for tests.
absl::StatusOr<HostMemory> ReadHostMemoryIn(absl::string_view proc, absl::string_view cgroup);

// Above this part of the total a machine drops the pages of running programs and is close to its
// OOM killer, which takes whom it likes; nobody new may bring it there.
inline constexpr double kMaxUsedFraction = 0.95;

// RESOURCE_EXHAUSTED, with the numbers: `size_bytes` more for `what` would take `memory` above
// that.
absl::Status CheckHostRoom(const HostMemory& memory, int64_t size_bytes, absl::string_view what);
// The same of the machine as it is now. OK, too, where that cannot be read.
absl::Status CheckHostRoom(int64_t size_bytes, absl::string_view what);

}  // namespace gemini::server
