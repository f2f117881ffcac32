// SPDX-License-Identifier: Apache-2.0
// What this process has pinned, and a thread that may pin next to nothing: like one of an ordinary
// user under a small limit on locked memory.
#pragma once
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace gemini::server {

// Bytes that the kernel counts as pinned, registered buffers of io_uring among them.
inline int64_t PinnedBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = -1;
    if (word == "VmPin:" && status >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no VmPin";
  return -1;
}

// While it lives, the limit of the process is enough for a ring itself, which the kernel counts
// too, and the calling thread has no capability to pass it.
class LittleLockedMemory {
 public:
  LittleLockedMemory() {
    EXPECT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit_), 0);
    const rlimit little = {.rlim_cur = 1 << 20, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
    DropCapability();
  }
  LittleLockedMemory(const LittleLockedMemory&) = delete;
  LittleLockedMemory& operator=(const LittleLockedMemory&) = delete;
  ~LittleLockedMemory() { ::setrlimit(RLIMIT_MEMLOCK, &limit_); }

 private:
  static void DropCapability() {
    __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
    EXPECT_EQ(::syscall(SYS_capget, &header, sets), 0);
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    EXPECT_EQ(::syscall(SYS_capset, &header, sets), 0);
  }
  rlimit limit_ = {};
};

}  // namespace gemini::server
