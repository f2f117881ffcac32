// SPDX-License-Identifier: Apache-2.0
#include "server/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
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
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return ErrnoStatus(errno, "socket");
  const auto address_size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  if (::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), address_size) < 0) {
    return ErrnoStatus(errno, "send to NOTIFY_SOCKET");
  }
  return absl::OkStatus();
}

std::optional<absl::Duration> WatchdogTimeout() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    int64_t value = 0;
    return text != nullptr && absl::SimpleAtoi(text, &value) ? value : 0;
  };
  // Another process's watchdog comes here when the environment is inherited.
  const int64_t pid = number("WATCHDOG_PID");
  if (pid != 0 && pid != ::getpid()) return std::nullopt;
  const int64_t timeout_us = number("WATCHDOG_USEC");
  if (timeout_us <= 0) return std::nullopt;
  return absl::Microseconds(timeout_us);
}

void FeedWatchdog(EventLoop& loop) {
  const std::optional<absl::Duration> timeout = WatchdogTimeout();
  if (!timeout.has_value()) return;
  NotifyServiceManager("WATCHDOG=1").IgnoreError();  // The next one comes soon enough.
  loop.After(*timeout / 2, [&loop] { FeedWatchdog(loop); });
}

}  // namespace gemini::server
