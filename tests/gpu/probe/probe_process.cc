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
#include "tests/gpu/probe/probe.h"

namespace gemini::probe {
namespace {

constexpr int kPatienceSeconds = 60;
constexpr absl::string_view kEnded = "its process has ended";

absl::Status Send(const UniqueFd& socket, absl::string_view text, int fd) {
  return SendPacket(socket.get(), text,
                    fd >= 0 ? absl::MakeConstSpan(&fd, 1) : absl::Span<const int>());
}

Packet ReceiveFrom(const UniqueFd& socket, absl::string_view awaited) {
  absl::StatusOr<Packet> packet = ReceivePacket(socket.get());
  Need(packet.status(), absl::StrCat("wait for '", awaited, "'"));
  return *std::move(packet);
}

// The parent's end, and in the child the whole of it.
UniqueFd Fork(const std::function<void(Channel&)>& body, pid_t& child) {
  std::array<int, 2> ends = {};
  NeedSystem(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
             "socketpair");
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  child = ::fork();
  NeedSystem(child >= 0, "fork");
  if (child > 0) return ours;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ours.Reset();
  Channel channel(std::move(theirs));
  body(channel);
  ::_exit(0);
}

}  // namespace

Channel::Channel(UniqueFd socket) : socket_(std::move(socket)) {
  const timeval patience = {.tv_sec = kPatienceSeconds, .tv_usec = 0};
  NeedSystem(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0,
             "setsockopt");
}

void Channel::Say(absl::string_view text, int fd) const {
  Need(Send(socket_, text, fd), absl::StrCat("say '", text, "'"));
}

Packet Channel::Hear() const { return ReceiveFrom(socket_, "anything"); }

void Channel::Await(absl::string_view text) const {
  const Packet packet = ReceiveFrom(socket_, text);
  NeedTrue(packet.bytes == text, absl::StrCat("'", packet.bytes, "' is '", text, "'"));
}

UniqueFd Channel::AwaitFd(absl::string_view text) const {
  Packet packet = ReceiveFrom(socket_, text);
  NeedTrue(packet.bytes == text && packet.fds.size() == 1,
           absl::StrCat("'", packet.bytes, "' is '", text, "' with a descriptor"));
  return std::move(packet.fds[0]);
}

std::string Channel::HearOrWhyNot() const {
  absl::StatusOr<Packet> packet = ReceivePacket(socket_.get());
  if (packet.ok()) return packet->bytes;
  if (absl::IsNotFound(packet.status())) {
    return absl::StrCat("nothing within ", kPatienceSeconds, " s");
  }
  return std::string(kEnded);
}

std::string Channel::Ask(absl::string_view text) const {
  return Send(socket_, text, /*fd=*/-1).ok() ? HearOrWhyNot() : std::string(kEnded);
}

Process::Process(const std::function<void(Channel&)>& body) : channel_(Fork(body, child_)) {}

Process::~Process() { Kill(); }

void Process::Signal() {
  if (child_ > 0) ::kill(child_, SIGKILL);
}

int Process::Wait() {
  if (child_ <= 0) return 0;
  int status = 0;
  NeedSystem(::waitpid(std::exchange(child_, -1), &status, 0) > 0, "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void Process::Kill() {
  Signal();
  Wait();
}

void AskInAProcess(absl::string_view name, const std::function<void()>& ask) {
  Process process([&ask](Channel&) {
    ::alarm(120);
    ask();
  });
  const int status = process.Wait();
  if (status == 0) return;
  Answer(absl::StrCat("how the process ended that asks of ", name),
         status > 0 ? absl::StrCat("with status ", status) : absl::StrCat("by signal ", -status));
}

}  // namespace gemini::probe
