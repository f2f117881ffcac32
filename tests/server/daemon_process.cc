// SPDX-License-Identifier: Apache-2.0
#include "tests/server/daemon_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/runtime_directory.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {

absl::StatusOr<DaemonProcess> DaemonProcess::Start(const std::string& binary,
                                                   const std::vector<std::string>& flags) {
  std::string directory = std::filesystem::temp_directory_path() / "geminid-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return ErrnoStatus(errno, "mkdtemp");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string notify = absl::StrCat(directory, "/notify");
  std::memcpy(address.sun_path, notify.data(), notify.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, "bind the notify socket");
  }
  std::vector<std::string> command = {binary, "--runtime-dir", directory, "--state-dir",
                                      absl::StrCat(directory, "/state")};
  command.insert(command.end(), flags.begin(), flags.end());
  GEMINI_ASSIGN_OR_RETURN(ChildProcess process,
                          ChildProcess::Start(command, {absl::StrCat("NOTIFY_SOCKET=", notify)}));
  pollfd ready = {.fd = socket.get(), .events = POLLIN, .revents = 0};
  std::array<char, 64> text = {};
  if (::poll(&ready, 1, 10'000) != 1 ||
      ::recv(socket.get(), text.data(), text.size() - 1, 0) <= 0 ||
      absl::string_view(text.data()) != "READY=1") {
    return absl::UnavailableError("geminid did not become ready");
  }
  return DaemonProcess(std::move(directory), std::move(process));
}

DaemonProcess::~DaemonProcess() {
  if (directory_.empty()) return;
  process_.Signal(SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string DaemonProcess::socket_path() const {
  return absl::StrCat(directory_, "/", kSocketName);
}

absl::StatusOr<WireClient> DaemonProcess::Connect(absl::string_view label, wire::Role role) const {
  GEMINI_ASSIGN_OR_RETURN(WireClient client, WireClient::ConnectTo(socket_path()));
  GEMINI_RETURN_IF_ERROR(client.Hello(label, role));
  return client;
}

}  // namespace gemini::server
