// SPDX-License-Identifier: Apache-2.0
#include "server/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gemini/system/errno_status.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

absl::Status NotifyServiceManager(absl::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return absl::OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::strlen(path);
  if (size >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("NOTIFY_SOCKET is too long for a socket address");
  }
  std::memcpy(address.sun_path, path, size);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // An abstract address.
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "socket");
  const auto address_size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  if (::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), address_size) < 0) {
    return ErrnoStatus(errno, "send to NOTIFY_SOCKET");
  }
  return absl::OkStatus();
}

}  // namespace gemini::server
