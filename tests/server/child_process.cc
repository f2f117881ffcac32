// SPDX-License-Identifier: Apache-2.0
#include "tests/server/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "gemini/system/errno_status.h"

namespace gemini::server {

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command,
                                                 const std::vector<std::string>& environment) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  // Made before the fork: the child may only call what is safe after one.
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  for (const std::string& variable : environment) {
    variables.push_back(const_cast<char*>(variable.c_str()));
  }
  variables.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::dup2(input.get(), 1);
    ::execve(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return ChildProcess(pid, std::move(pidfd), std::move(output));
}

ChildProcess::ChildProcess(pid_t pid, UniqueFd pidfd, UniqueFd output)
    : pid_(pid), pidfd_(std::move(pidfd)), output_(std::move(output)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pidfd_(std::move(other.pidfd_)),
      output_(std::move(other.output_)),
      read_(std::move(other.read_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);  // 0 would be our own process group.
}

bool ChildProcess::WaitDead(absl::Duration timeout) const {
  pollfd state = {.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&state, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
}

void ChildProcess::WaitStopped() const {
  siginfo_t info;
  ::waitid(P_PID, pid_, &info, WSTOPPED);
}

int ChildProcess::Reap() {
  int status = 0;
  ::waitpid(std::exchange(pid_, 0), &status, 0);
  return status;
}

absl::StatusOr<std::string> ChildProcess::ReadLine(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    pollfd state = {.fd = output_.get(), .events = POLLIN, .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms < 0 || ::poll(&state, 1, static_cast<int>(left_ms)) == 0) {
      return absl::DeadlineExceededError("no line");
    }
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
    if (count <= 0) return absl::UnavailableError("the process ended its output");
    read_.append(bytes.data(), count);
  }
}

}  // namespace gemini::server
