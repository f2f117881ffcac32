// SPDX-License-Identifier: Apache-2.0
// A program that a test started, killed by its pid when the test ends.
// Thread: one at a time.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class ChildProcess {
 public:
  // `environment` holds NAME=VALUE added to ours. The child's stdout is a pipe to here.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command,
                                            const std::vector<std::string>& environment = {});
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Readable once the process is dead; ownership stays here.
  int pidfd() const { return pidfd_.get(); }
  void Signal(int signal) const;
  // Waits until the process is dead (it stays a zombie). False: not within `timeout`.
  bool WaitDead(absl::Duration timeout) const;
  // Waits until a SIGSTOP has taken effect.
  void WaitStopped() const;
  // Reaps it; the wait status. Blocks.
  int Reap();
  // The next line of its stdout, without the newline. UNAVAILABLE: it ended. DEADLINE_EXCEEDED.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd, UniqueFd output);
  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd output_;
  std::string read_;
};

}  // namespace gemini::server
