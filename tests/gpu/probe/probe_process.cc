// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/probe_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/seqpacket.h"
#include "tests/gpu/probe/probe.h"

namespace gemini::probe {
namespace {

Packet ReceiveFrom(int socket, absl::string_view awaited) {
  absl::StatusOr<Packet> packet = ReceivePacket(socket);
  NeedTrue(packet.ok(), absl::StrCat("wait for '", awaited, "': ", packet.status().message()));
  return *std::move(packet);
}

// The parent's end, and in the child the whole of it.
UniqueFd Fork(const std::function<void(Channel&)>& body, pid_t& child) {
  std::array<int, 2> ends = {};
  NeedTrue(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  child = ::fork();
  NeedTrue(child >= 0, "fork");
  if (child > 0) return ours;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ours.Reset();
  Channel channel(std::move(theirs));
  body(channel);
  ::_exit(0);
}

}  // namespace

Channel::Channel(UniqueFd socket) : socket_(std::move(socket)) {
  const timeval minute = {.tv_sec = 60, .tv_usec = 0};
  NeedTrue(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute)) == 0,
           "setsockopt");
}

void Channel::Say(absl::string_view text, int fd) const {
  const absl::Status sent = SendPacket(
      socket_.get(), text, fd >= 0 ? absl::MakeConstSpan(&fd, 1) : absl::Span<const int>());
  NeedTrue(sent.ok(), absl::StrCat("say '", text, "': ", sent.message()));
}

void Channel::Await(absl::string_view text) const {
  const Packet packet = ReceiveFrom(socket_.get(), text);
  NeedTrue(packet.bytes == text, absl::StrCat("heard '", packet.bytes, "' for '", text, "'"));
}

UniqueFd Channel::AwaitFd(absl::string_view text) const {
  Packet packet = ReceiveFrom(socket_.get(), text);
  NeedTrue(packet.bytes == text && packet.fds.size() == 1,
           absl::StrCat("heard '", packet.bytes, "' for '", text, "' and a descriptor"));
  return std::move(packet.fds[0]);
}

std::string Channel::Hear() const { return ReceiveFrom(socket_.get(), "anything").bytes; }

Process::Process(const std::function<void(Channel&)>& body) : channel_(Fork(body, child_)) {}

Process::~Process() {
  if (child_ > 0) Kill();
}

void Process::Kill() {
  ::kill(child_, SIGKILL);
  Wait();
}

int Process::Wait() {
  int status = 0;
  ::waitpid(std::exchange(child_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace gemini::probe
