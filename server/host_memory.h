// SPDX-License-Identifier: Apache-2.0
// How much memory this process could still take: the machine's and its control group's word.
// Thread: any. Reads /proc and /sys, which never wait for a disk.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::server {

// Returns the smaller of MemAvailable and what the control groups (v2, else v1) leave free.
// INTERNAL: /proc/meminfo says nothing.
absl::StatusOr<int64_t> AvailableHostMemory();

// As above, with the two trees elsewhere: for tests.
absl::StatusOr<int64_t> AvailableHostMemoryIn(absl::string_view proc, absl::string_view cgroup);

}  // namespace gemini::server
