// SPDX-License-Identifier: Apache-2.0
#include "server/wire/peer_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/errno_status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; the C library's headers may be older than the kernel.
#endif

namespace gemini::server {

absl::StatusOr<PeerProcess> FindPeerProcess(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  PeerProcess peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  if (peer.pid == ::getpid()) return peer;
  int fd = -1;
  size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    peer.pidfd = UniqueFd(fd);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return peer;
  }
  if (errno == ESRCH || errno == EINVAL) return absl::UnavailableError("the peer is dead");
  // An older kernel. Between connect and here the pid may have gone to another process: that one's
  // death would be awaited instead, so bytes may come back late, never early.
  peer.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!peer.pidfd) {
    if (errno == ESRCH) return absl::UnavailableError("the peer is dead");
    if (errno == ENOSYS)
      return absl::UnimplementedError("this kernel has no pidfd_open (Linux 5.3)");
    return ErrnoStatus(errno, "pidfd_open");
  }
  return peer;
}

bool IsStopped(pid_t pid) {
  // Of the first thread: in the process's own file the kernel sums up all of its threads, however
  // many.
  UniqueFd file(
      ::open(absl::StrCat("/proc/", pid, "/task/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  std::array<char, 512> text;
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count <= 0) return false;
  // "pid (name) state ...": the name may hold anything, the last ')' ends it.
  const absl::string_view stat(text.data(), count);
  const size_t end = stat.rfind(')');
  if (end == absl::string_view::npos || end + 2 >= stat.size()) return false;
  return stat[end + 2] == 'T' || stat[end + 2] == 't';
}

}  // namespace gemini::server
