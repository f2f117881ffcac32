// SPDX-License-Identifier: Apache-2.0
// Reads and writes the socket of one peer. It reads whole messages and holds at most one message
// that waits to be sent.
// Reading: nothing is read while a request is being answered, or while its answer waits for room.
// So a peer that does not read its replies occupies one message here, and never blocks the thread.
// Descriptors: no message with descriptors is sent while an earlier one is unread, because the
// kernel limits the descriptors in flight of all processes of a user.
// Owner:  the server thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/unique_fd.h"
#include "server/loop/event_loop.h"
#include "server/loop/fd_closer.h"

namespace gemini::server {

class PeerConnection {
 public:
  struct Handlers {
    // Is called with each message. May destroy the connection.
    absl::AnyInvocable<void(std::string bytes)> message;
    // Is called when the kernel has refused the descriptors of `bytes` for kDescriptorPatience, or
    // when they have to wait and there is no descriptor left to keep them by.
    // Returns the message to send instead, without descriptors. Empty: send nothing now.
    absl::AnyInvocable<std::string(const std::string& bytes)> undeliverable;
    // Is called once, last, when the peer hung up or sent what is no message. May destroy the
    // connection.
    absl::AnyInvocable<void(absl::Status reason)> hang_up;
  };

  // Shorter than the time that clients wait for an answer.
  static constexpr absl::Duration kDescriptorPatience = absl::Seconds(2);

  // Makes `socket` non-blocking, and refuses descriptors where the kernel can. Both outlive this.
  PeerConnection(EventLoop& loop, FdCloser& closer, UniqueFd socket);
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;
  ~PeerConnection();

  // Closes a connected socket; never waits for what its peer sent.
  static void Close(FdCloser& closer, UniqueFd socket);

  // Begins to read. Errors: as EventLoop::Watch.
  absl::Status Start(Handlers handlers);

  // Between these two calls nothing is read; a hang-up is still noticed.
  void Pause();
  void Resume();

  // Sends now, or keeps the message (duplicates of `fds` with it) until there is room. Without a
  // descriptor left for a duplicate, what `undeliverable` returns is sent instead then. The one
  // before must be gone, as it is when a message handler runs.
  void Send(std::string bytes, absl::Span<const int> fds);
  // Ends the connection once the last Send went out; hang_up is called. Nothing more is read.
  void CloseAfterSend();

  int fd() const { return socket_.get(); }

 private:
  void Handle(uint32_t events);
  void HangUp(const absl::Status& reason);
  void UpdateWatch();
  enum class Sent { kYes, kNoRoom, kDescriptorsUnread, kTooManyInFlight };
  Sent TrySend(const std::string& bytes, absl::Span<const int> fds);
  // Has Flush called when what kept out_ back may be over.
  void AwaitFlush(Sent sent);
  void Flush();

  EventLoop& loop_;
  FdCloser& closer_;
  const bool refuses_descriptors_;
  UniqueFd socket_;
  Handlers handlers_;
  EventLoop::WatchId watch_ = 0;
  bool paused_ = false;
  bool closing_ = false;
  bool hung_up_ = false;
  bool waiting_ = false;  // for room for:
  Packet out_;
  bool descriptors_lost_ = false;  // Those of out_ could not be duplicated.
  bool sent_descriptors_ = false;  // With the last message that had some.
  std::optional<EventLoop::TimerId> retry_;
  absl::Duration retry_delay_, kept_back_;  // By the kernel's bound, so far.
};

}  // namespace gemini::server
