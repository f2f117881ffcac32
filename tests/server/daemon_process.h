// SPDX-License-Identifier: Apache-2.0
// The real geminid in a directory of its own, ready to be connected to.
// Thread: one at a time.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/server/child_process.h"
#include "tests/server/wire_client.h"

namespace gemini::server {

class DaemonProcess {
 public:
  // Starts `binary` with `flags` and a fresh --runtime-dir, and waits for its READY=1.
  static absl::StatusOr<DaemonProcess> Start(const std::string& binary,
                                             const std::vector<std::string>& flags);
  DaemonProcess(DaemonProcess&&) = default;
  ~DaemonProcess();

  const std::string& directory() const { return directory_; }
  std::string socket_path() const;
  ChildProcess& process() { return process_; }
  // A client that said hello.
  absl::StatusOr<WireClient> Connect(absl::string_view label,
                                     wire::Role role = wire::Role::kTrainer) const;

 private:
  DaemonProcess(std::string directory, ChildProcess process)
      : directory_(std::move(directory)), process_(std::move(process)) {}
  std::string directory_;
  ChildProcess process_;
};

}  // namespace gemini::server
