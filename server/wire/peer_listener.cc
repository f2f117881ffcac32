// SPDX-License-Identifier: Apache-2.0
#include "server/wire/peer_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/wire/peer_connection.h"

namespace gemini::server {
namespace {

// Long beside an accept, short beside the patience of who connects.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

UniqueFd OpenSpare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

UniqueFd AcceptOne(const UniqueFd& listener) {
  return UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

PeerListener::PeerListener(EventLoop& loop, FdCloser& closer, int64_t most_waiting,
                           std::function<void(UniqueFd)> accept)
    : loop_(loop),
      closer_(closer),
      most_waiting_(most_waiting),
      accept_(std::move(accept)),
      spare_fd_(OpenSpare()) {}

absl::Status PeerListener::Listen(UniqueFd listener) {
  const int flags = ::fcntl(listener.get(), F_GETFL);
  ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK);
  listener_ = std::move(listener);
  GEMINI_ASSIGN_OR_RETURN(watch_,
                          loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }));
  return absl::OkStatus();
}

void PeerListener::Close() {
  if (watch_ != 0) loop_.Unwatch(std::exchange(watch_, 0));
  closer_.Close(std::move(listener_));
}

void PeerListener::Pause() {
  loop_.Rewatch(watch_, 0);
  loop_.After(kAcceptPause, [this] {
    if (watch_ != 0) loop_.Rewatch(watch_, EPOLLIN);
  });
}

void PeerListener::Accept() {
  if (closer_.num_waiting() >= most_waiting_) {
    // Somebody's descriptors block the closer: no more are let in that might wait behind them.
    Pause();
    return;
  }
  UniqueFd socket = AcceptOne(listener_);
  if (socket) {
    accept_(std::move(socket));
    return;
  }
  const int error = errno;
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
  if (error == EMFILE || error == ENFILE) {
    // The spare one lets the peer know, instead of leaving it in the queue.
    spare_fd_.Reset();
    PeerConnection::Close(closer_, AcceptOne(listener_));
    spare_fd_ = OpenSpare();
  }
  // Who waits in the queue makes the listener readable: the loop would turn for ever.
  Pause();
  const absl::Duration now = MonotonicNow();
  if (now < next_warning_) return;
  next_warning_ = now + absl::Seconds(10);
  ServerLog().warn("cannot accept connections: {}: raise the limit (ulimit -n) or close programs",
                   ErrnoStatus(error, "accept4").ToString());
}

}  // namespace gemini::server
