// SPDX-License-Identifier: Apache-2.0
// Computes how much of the machine's memory may still be granted, so that enough of it stays free.
// Where DEVICE is host memory, jobs are granted it without pages: what they do not use yet must not
// be granted to others.
// Thread: any.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gemini/system/host_memory.h"

namespace gemini::server {

// What limits grants. A member is empty where it could not be read, and then limits nothing.
struct HostMemories {
  std::optional<HostMemory> machine;
  std::optional<HostMemory> tightest;  // For what is charged to the control groups of this process.
};
// Reads /proc and /sys, which never wait for a disk.
HostMemories ReadHostMemories();

// What jobs were granted as DEVICE where that is host memory, and do not use yet.
struct PromisedDevice {
  int64_t bytes = 0;
  int64_t charged_here_bytes = 0;  // Of jobs in the control groups of this process.
  PromisedDevice& operator+=(const PromisedDevice& other) {
    bytes += other.bytes;
    charged_here_bytes += other.charged_here_bytes;
    return *this;
  }
};

// Returns how many bytes more leave KeptBytes of `memory` free, beside `promised_bytes` of it.
// Below 0: too many are promised already.
int64_t RoomIn(const HostMemory& memory, int64_t promised_bytes);
// Checks that `size_bytes` more for `what` are no more than RoomIn. RESOURCE_EXHAUSTED: they are;
// the message has the numbers, and ends with `advice`.
absl::Status CheckRoomIn(const HostMemory& memory, int64_t size_bytes, int64_t promised_bytes,
                         absl::string_view what, absl::string_view advice);

// Returns RoomIn of the machine and, for what is `charged_here`, of the tightest memory, whichever
// is less; the largest number without either.
int64_t HostRoom(const HostMemories& memories, const PromisedDevice& promised, bool charged_here);
// Checks as CheckRoomIn does, against both memories.
absl::Status CheckHostRoom(const HostMemories& memories, int64_t size_bytes,
                           const PromisedDevice& promised, bool charged_here,
                           absl::string_view what, absl::string_view advice);

}  // namespace gemini::server
