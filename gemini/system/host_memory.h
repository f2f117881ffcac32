// SPDX-License-Identifier: Apache-2.0
// Reads how much memory the machine and its control groups leave this process, and says how much of
// it stays free and how much DEVICE takes by default.
// Thread: any. Reads /proc and /sys, which never wait for a disk.
#pragma once
#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // What can be taken without swapping.
};

// Returns that of the machine or, if one leaves less, of a control group of this process or above
// it (v1 or v2). INTERNAL: /proc/meminfo says nothing.
absl::StatusOr<HostMemory> ReadHostMemory();
// Returns the available bytes of ReadHostMemory.
absl::StatusOr<int64_t> AvailableHostMemory();
// Returns that of the machine, whatever groups allow. Errors: as above.
absl::StatusOr<HostMemory> ReadMachineMemory();
// Returns whether the process is in the control groups of this one. False if it is gone.
bool SharesControlGroups(pid_t pid);

// As ReadHostMemory, with the two trees elsewhere: for tests.
absl::StatusOr<HostMemory> ReadHostMemoryIn(absl::string_view proc, absl::string_view cgroup);

// The largest part of the memory that may be in use after a grant. Above it, a machine drops pages
// of running programs and is close to its OOM killer, which may kill any process.
inline constexpr double kMaxUsedFraction = 0.95;
// Returns the bytes of `memory` that stay free.
int64_t KeptBytes(const HostMemory& memory);

// Returns how much DEVICE a job takes by default where DEVICE is host memory: a quarter of what is
// available, or, if that is less, what `host_bytes` of HOST leave of it beside what stays free and
// a part for what the job and others take meanwhile. It is never less than a sixteenth of what is
// available.
int64_t DefaultDeviceBytes(const HostMemory& memory, int64_t host_bytes);

}  // namespace gemini
