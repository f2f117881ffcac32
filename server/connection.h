// SPDX-License-Identifier: Apache-2.0
// One peer's socket: whole messages in, at most one message waiting to go out. While a request is
// being answered, or its answer waits for room, nothing more is read: a peer that does not read its
// replies holds one message of ours, never the thread.
// Owner:  the server thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gemini/seqpacket.h"
#include "gemini/unique_fd.h"
#include "server/event_loop.h"

namespace gemini::server {

class Connection {
 public:
  struct Handlers {
    // Descriptors that came though the kernel was asked to refuse them; closing them may block.
    absl::AnyInvocable<void(std::vector<UniqueFd> fds)> unwanted;
    // One message. May destroy the connection.
    absl::AnyInvocable<void(std::string bytes)> message;
    // The peer hung up, or sent what cannot be a message. Called once, last. May destroy.
    absl::AnyInvocable<void(absl::Status reason)> hang_up;
  };

  // Makes `socket` non-blocking, and refuses descriptors where the kernel can. `loop` outlives the connection.
  Connection(EventLoop& loop, UniqueFd socket);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // Begins to read. Errors: as EventLoop::Watch.
  absl::Status Start(Handlers handlers);

  // Between these two calls nothing is read; a hang-up is still noticed.
  void Pause();
  void Resume();

  // Sends now, or keeps the message (duplicates of `fds` with it) until there is room. The one before
  // must be gone, as it is when a message handler runs.
  void Send(std::string bytes, absl::Span<const int> fds);
  // Ends the connection once the last Send went out; hang_up is called. Nothing more is read.
  void CloseAfterSend();

  int fd() const { return socket_.get(); }

 private:
  void Handle(uint32_t events);
  void HangUp(const absl::Status& reason);
  void UpdateWatch();
  // Returns false when the message must wait for room.
  bool TrySend(const std::string& bytes, absl::Span<const int> fds);
  void Flush();

  EventLoop& loop_;
  UniqueFd socket_;
  Handlers handlers_;
  EventLoop::WatchId watch_ = 0;
  bool paused_ = false;
  bool closing_ = false;
  bool hung_up_ = false;
  bool waiting_ = false;  // for room for:
  Packet out_;
};

}  // namespace gemini::server
