// SPDX-License-Identifier: Apache-2.0
// Maps memory whose pages a peer may give back to the kernel under us. The next load then needs a
// new page, and where the machine has none to give (vm.overcommit_memory 2) it is a SIGBUS.
// Survive() has such a load read zeros instead.
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/system/mapped_memory.h"

namespace gemini::server {

class PeerMemory {
 public:
  // Handles SIGBUS in this process from now on: a page of PeerMemory that cannot be had is replaced
  // by one of zeros, which stays. Any other SIGBUS ends the process as before. For a process of our
  // own: a program that embeds the server has no peers but itself. Errors: as sigaction(2).
  static absl::Status Survive();

  PeerMemory() = default;
  // Maps `size_bytes` (> 0) of `fd` from its start, read-only and shared. RESOURCE_EXHAUSTED: 2^15
  // such mappings are there. Others: as MappedMemory::Map.
  static absl::StatusOr<PeerMemory> Map(int fd, int64_t size_bytes);
  PeerMemory(PeerMemory&& other) noexcept { *this = std::move(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(range_, other.range_);
    return *this;
  }
  ~PeerMemory();

  const std::byte* data() const { return memory_.data(); }
  int64_t size_bytes() const { return memory_.size_bytes(); }

 private:
  static constexpr int kNone = -1;
  MappedMemory memory_;
  int range_ = kNone;  // Where the handler finds the addresses.
};

}  // namespace gemini::server
