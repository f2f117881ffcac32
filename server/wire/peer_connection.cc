// SPDX-License-Identifier: Apache-2.0
#include "server/wire/peer_connection.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/system/check.h"

namespace gemini::server {
namespace {

// For a peer that does not read, or a user with too many descriptors in flight: nothing tells the
// end of either.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(5);
constexpr absl::Duration kLastRetry = absl::Milliseconds(200);

}  // namespace

// A listener's own setting is inherited before the first message; this is for other sockets.
PeerConnection::PeerConnection(EventLoop& loop, FdCloser& closer, UniqueFd socket)
    : loop_(loop),
      closer_(closer),
      refuses_descriptors_(RefuseDescriptors(socket.get())),
      socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
}

PeerConnection::~PeerConnection() {
  if (watch_ != 0) loop_.Unwatch(watch_);
  if (retry_.has_value()) loop_.Cancel(*retry_);
  Close(closer_, std::move(socket_));
}

void PeerConnection::Close(FdCloser& closer, UniqueFd socket) {
  // Only what holds a peer's descriptors is left to the closer, where one that blocks keeps the
  // others.
  if (!socket || RefuseDescriptors(socket.get()) || !DropUntilDescriptors(socket.get())) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  closer.Close(std::move(socket));
}

absl::Status PeerConnection::Start(Handlers handlers) {
  handlers_ = std::move(handlers);
  const absl::StatusOr<EventLoop::WatchId> watch =
      loop_.Watch(socket_.get(), EPOLLIN | EPOLLRDHUP, [this](uint32_t events) { Handle(events); });
  if (!watch.ok()) return watch.status();
  watch_ = *watch;
  return absl::OkStatus();
}

void PeerConnection::Pause() {
  paused_ = true;
  UpdateWatch();
}

void PeerConnection::Resume() {
  paused_ = false;
  UpdateWatch();
}

void PeerConnection::UpdateWatch() {
  if (hung_up_ || watch_ == 0) return;
  uint32_t events = 0;
  if (waiting_) {
    // Where there is room, but not for descriptors, a timer looks again.
    if (!retry_.has_value()) events = EPOLLOUT;
  } else if (!paused_ && !closing_) {
    events = EPOLLIN;
  }
  // EPOLLRDHUP only while reading: a half-closed peer would wake the loop for ever otherwise, and a
  // full hang-up is EPOLLHUP, which always comes.
  if ((events & EPOLLIN) != 0) events |= EPOLLRDHUP;
  loop_.Rewatch(watch_, events);
}

void PeerConnection::HangUp(const absl::Status& reason) {
  if (hung_up_) return;
  hung_up_ = true;
  loop_.Unwatch(watch_);
  handlers_.hang_up(reason);  // May destroy this.
}

void PeerConnection::Handle(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    Flush();  // May destroy this.
    return;
  }
  const bool reads = !paused_ && !closing_ && !waiting_;
  if (reads && (events & EPOLLIN) != 0) {
    // What a peer sent before it hung up is still served, in order.
    if (!refuses_descriptors_ && NextHasDescriptors(socket_.get())) {
      HangUp(absl::InvalidArgumentError("it sent descriptors"));
      return;
    }
    Packet packet;
    const absl::Status received = ReceivePacketInto(socket_.get(), packet);
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

PeerConnection::Sent PeerConnection::TrySend(const std::string& bytes, absl::Span<const int> fds) {
  int unread_bytes = 0;
  if (!fds.empty() && sent_descriptors_ && ::ioctl(socket_.get(), SIOCOUTQ, &unread_bytes) == 0 &&
      unread_bytes > 0) {
    return Sent::kDescriptorsUnread;
  }
  const absl::Status sent = SendPacket(socket_.get(), bytes, fds);
  if (sent.ok()) {
    if (!fds.empty()) sent_descriptors_ = true;
    return Sent::kYes;
  }
  if (absl::IsNotFound(sent)) return Sent::kNoRoom;
  if (absl::IsResourceExhausted(sent) && !fds.empty()) return Sent::kTooManyInFlight;
  // The peer is gone or reads no more. An answer that cannot come is told by the end of the
  // connection, which the loop then sees as a hang-up.
  ::shutdown(socket_.get(), SHUT_RDWR);
  return Sent::kYes;
}

void PeerConnection::Send(std::string bytes, absl::Span<const int> fds) {
  if (hung_up_) return;
  GEMINI_CHECK(!waiting_);
  const Sent sent = TrySend(bytes, fds);
  if (sent == Sent::kYes) return;
  waiting_ = true;
  out_.bytes = std::move(bytes);
  for (int fd : fds) {
    out_.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!out_.fds.back()) descriptors_lost_ = true;
  }
  retry_delay_ = kFirstRetry;
  kept_back_ = absl::ZeroDuration();
  AwaitFlush(sent);
}

void PeerConnection::AwaitFlush(Sent sent) {
  if (sent != Sent::kNoRoom) {
    if (sent == Sent::kTooManyInFlight) kept_back_ += retry_delay_;
    retry_ = loop_.After(retry_delay_, [this] {
      retry_.reset();
      Flush();
    });
    retry_delay_ = std::min(2 * retry_delay_, kLastRetry);
  }
  UpdateWatch();
}

void PeerConnection::Flush() {
  if (!waiting_ || hung_up_) return;
  const bool lost = std::exchange(descriptors_lost_, false);
  std::vector<int> fds;
  for (const UniqueFd& fd : out_.fds) fds.push_back(fd.get());
  const Sent sent = lost ? Sent::kTooManyInFlight : TrySend(out_.bytes, fds);
  if (lost || (sent == Sent::kTooManyInFlight && kept_back_ >= kDescriptorPatience)) {
    waiting_ = false;
    std::string instead = handlers_.undeliverable(std::exchange(out_, Packet()).bytes);
    if (!instead.empty()) Send(std::move(instead), {});
  } else if (sent != Sent::kYes) {
    AwaitFlush(sent);
    return;
  } else {
    waiting_ = false;
    out_ = Packet();
  }
  if (closing_ && !waiting_) {
    HangUp(absl::OkStatus());
    return;
  }
  UpdateWatch();
}

void PeerConnection::CloseAfterSend() {
  closing_ = true;
  if (!waiting_) {
    HangUp(absl::OkStatus());
    return;
  }
  UpdateWatch();
}

}  // namespace gemini::server
