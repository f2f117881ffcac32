// SPDX-License-Identifier: Apache-2.0
// Finds which peers' processes are stopped. Each is looked at once in 100 ms at most: the kernel
// walks all threads of a process to say so, and the server may ask for each lease at each event.
// Owner:  the server thread.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

namespace gemini::server {

class StoppedProcesses {
 public:
  // As IsStopped of server/wire/peer_process.h, up to 100 ms ago.
  bool Contains(pid_t pid);

 private:
  std::unordered_map<pid_t, bool> read_;
  int64_t valid_until_ns_ = 0;  // Of all that was read: then each is read again.
};

}  // namespace gemini::server
