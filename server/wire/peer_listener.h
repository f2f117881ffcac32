// SPDX-License-Identifier: Apache-2.0
// Accepts connections from a listening socket. If descriptors run out, it closes the connection of
// the next peer, so that the peer knows, and pauses, so that the loop does not spin.
// Owner:  the server thread.
// Errors: what cannot be accepted is logged, once in 10 seconds.
#pragma once
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "server/loop/event_loop.h"
#include "server/loop/fd_closer.h"

namespace gemini::server {

class PeerListener {
 public:
  // `accept` is given each connection. None is taken while `closer` has `most_waiting` descriptors
  // to close. The loop and the closer must outlive this.
  PeerListener(EventLoop& loop, FdCloser& closer, int64_t most_waiting,
               std::function<void(UniqueFd)> accept);
  ~PeerListener() { Close(); }
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // Accepts from now on. Errors: as EventLoop::Watch.
  absl::Status Listen(UniqueFd listener);
  // Closes the socket, with what was sent to it and not accepted.
  void Close();

 private:
  void Accept();
  void Pause();

  EventLoop& loop_;
  FdCloser& closer_;
  const int64_t most_waiting_;
  const std::function<void(UniqueFd)> accept_;
  UniqueFd listener_;
  EventLoop::WatchId watch_ = 0;
  UniqueFd spare_fd_;  // Given up for a moment to refuse a peer when descriptors run out.
  absl::Duration next_warning_ = -absl::InfiniteDuration();
};

}  // namespace gemini::server
