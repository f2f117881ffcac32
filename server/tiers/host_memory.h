// SPDX-License-Identifier: Apache-2.0
// Reads how much memory this process can still allocate, which the machine and its control groups
// limit, and refuses grants that would leave too little.
// Thread: any. Reads /proc and /sys, which never wait for a disk.
#pragma once
#include <sys/types.h>

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
// Returns that of the machine, whatever groups allow. Errors: as above.
absl::StatusOr<HostMemory> ReadMachineMemory();
// Returns whether the process is in the control groups of this one. False if it is gone.
bool SharesControlGroups(pid_t pid);

// As above, with the two trees elsewhere: for tests.
absl::StatusOr<HostMemory> ReadHostMemoryIn(absl::string_view proc, absl::string_view cgroup);

// The largest part of the memory that may be in use after a grant. Above it, a machine drops pages
// of running programs and is close to its OOM killer, which may kill any process.
inline constexpr double kMaxUsedFraction = 0.95;

// Returns how many bytes more leave that much of `memory` free, beside `promised_bytes` that jobs
// were granted as DEVICE and have no pages of yet. Below 0: too many are promised already.
int64_t RoomIn(const HostMemory& memory, int64_t promised_bytes);
// Checks that `size_bytes` more for `what` are no more than RoomIn. RESOURCE_EXHAUSTED: they are;
// the message has the numbers.
absl::Status CheckHostRoom(const HostMemory& memory, int64_t size_bytes, int64_t promised_bytes,
                           absl::string_view what);
// Checks the same, with nothing promised, for ReadHostMemory. Returns OK if it cannot be read.
absl::Status CheckHostRoom(int64_t size_bytes, absl::string_view what);

}  // namespace gemini::server
