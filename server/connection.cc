// SPDX-License-Identifier: Apache-2.0
#include "server/connection.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "absl/status/statusor.h"
#include "gemini/check.h"

namespace gemini::server {

Connection::Connection(EventLoop& loop, UniqueFd socket) : loop_(loop), socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
  // A listener's own setting is inherited before the first message; this is for other sockets.
  (void)RefuseDescriptors(socket_.get());
}

Connection::~Connection() {
  if (watch_ != 0) loop_.Unwatch(watch_);
}

absl::Status Connection::Start(Handlers handlers) {
  handlers_ = std::move(handlers);
  const absl::StatusOr<EventLoop::WatchId> watch =
      loop_.Watch(socket_.get(), EPOLLIN | EPOLLRDHUP, [this](uint32_t events) { Handle(events); });
  if (!watch.ok()) return watch.status();
  watch_ = *watch;
  return absl::OkStatus();
}

void Connection::Pause() {
  paused_ = true;
  UpdateWatch();
}

void Connection::Resume() {
  paused_ = false;
  UpdateWatch();
}

void Connection::UpdateWatch() {
  if (hung_up_ || watch_ == 0) return;
  uint32_t events = 0;
  if (waiting_) {
    events = EPOLLOUT;
  } else if (!paused_ && !closing_) {
    events = EPOLLIN;
  }
  // EPOLLRDHUP only while reading: a half-closed peer would wake the loop for ever otherwise, and a
  // full hang-up is EPOLLHUP, which always comes.
  if ((events & EPOLLIN) != 0) events |= EPOLLRDHUP;
  loop_.Rewatch(watch_, events);
}

void Connection::HangUp(const absl::Status& reason) {
  if (hung_up_) return;
  hung_up_ = true;
  loop_.Unwatch(watch_);
  handlers_.hang_up(reason);  // May destroy this.
}

void Connection::Handle(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    Flush();  // May destroy this.
    return;
  }
  const bool reads = !paused_ && !closing_ && !waiting_;
  if (reads && (events & EPOLLIN) != 0) {
    // What a peer sent before it hung up is still served, in order.
    Packet packet;
    const absl::Status received = ReceivePacketInto(socket_.get(), packet);
    if (!packet.fds.empty()) handlers_.unwanted(std::move(packet.fds));
    if (received.ok()) {
      handlers_.message(std::move(packet.bytes));  // May destroy this.
      return;
    }
    if (received.code() != absl::StatusCode::kNotFound) {
      HangUp(received);
      return;
    }
  }
  if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
    HangUp(absl::UnavailableError("the peer closed the connection"));
  }
}

bool Connection::TrySend(const std::string& bytes, absl::Span<const int> fds) {
  const absl::Status sent = SendPacket(socket_.get(), bytes, fds);
  if (sent.ok()) return true;
  if (sent.code() == absl::StatusCode::kNotFound) return false;
  // The peer is gone or reads no more, or too many descriptors are in flight. An answer that cannot
  // come is told by the end of the connection, which the loop then sees as a hang-up.
  ::shutdown(socket_.get(), SHUT_RDWR);
  return true;
}

void Connection::Send(std::string bytes, absl::Span<const int> fds) {
  if (hung_up_) return;
  GEMINI_CHECK(!waiting_);
  if (TrySend(bytes, fds)) return;
  waiting_ = true;
  out_.bytes = std::move(bytes);
  for (int fd : fds) out_.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  UpdateWatch();
}

void Connection::Flush() {
  if (!waiting_) return;
  std::vector<int> fds;
  for (const UniqueFd& fd : out_.fds) fds.push_back(fd.get());
  if (!TrySend(out_.bytes, fds)) return;
  waiting_ = false;
  out_ = Packet();
  if (closing_) {
    HangUp(absl::OkStatus());
    return;
  }
  UpdateWatch();
}

void Connection::CloseAfterSend() {
  closing_ = true;
  if (!waiting_) {
    HangUp(absl::OkStatus());
    return;
  }
  UpdateWatch();
}

}  // namespace gemini::server
