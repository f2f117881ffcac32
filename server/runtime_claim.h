// SPDX-License-Identifier: Apache-2.0
// Makes one daemon the only one of a runtime directory, and opens its socket there.
// Thread: one, before any other starts (the process's umask changes for a moment).
#pragma once
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class RuntimeClaim {
 public:
  // Makes `directory` with mode 0700 where it is missing (not its parents), takes the lock file in
  // it, removes a socket that a dead daemon left, and listens on a new one with mode 0600.
  // INVALID_ARGUMENT: the socket's path is longer than the kernel takes, or the directory is none.
  // PERMISSION_DENIED: it is another user's or open to others. FAILED_PRECONDITION: another daemon
  // has it; the message names its pid.
  static absl::StatusOr<RuntimeClaim> Take(absl::string_view directory);
  RuntimeClaim(RuntimeClaim&&) = default;
  // Removes the socket, unless the lock file was replaced meanwhile, then gives up the lock.
  ~RuntimeClaim();

  UniqueFd TakeListener() { return std::move(listener_); }
  const std::string& socket_path() const { return socket_path_; }

 private:
  RuntimeClaim() = default;
  UniqueFd lock_;
  UniqueFd listener_;
  std::string lock_path_;
  std::string socket_path_;
};

}  // namespace gemini::server
