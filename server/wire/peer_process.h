// SPDX-License-Identifier: Apache-2.0
// Asks the kernel which process is at the other end of a socket, and opens a descriptor that
// becomes readable when that process dies.
// Thread: any.
#pragma once
#include <sys/types.h>

#include "absl/status/statusor.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;
  // Readable once the process is dead. Empty where the peer is this process itself (an embedded
  // server's client): its death cannot be outlived.
  UniqueFd pidfd;
};

// Asks the kernel (SO_PEERCRED; SO_PEERPIDFD, else pidfd_open). UNAVAILABLE: the peer is dead.
// UNIMPLEMENTED: this kernel has no pidfd.
absl::StatusOr<PeerProcess> FindPeerProcess(int socket);

// Returns whether the process is stopped by a signal or a debugger. False where unknown.
bool IsStopped(pid_t pid);

}  // namespace gemini::server
