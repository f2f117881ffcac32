// SPDX-License-Identifier: Apache-2.0
// The control connection to a server: one request, one verified reply.
// Thread: any; requests wait for each other.
// Errors: UNAVAILABLE: the server hung up, or did not answer in time; every later request says so
// too.
//         A Refusal becomes the Status that it carries, control characters escaped.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/mutex.h"
#include "gemini/unique_fd.h"
#include "gemini/wire_generated.h"

namespace gemini::client {

// A reply that was verified; `fds` came with it.
struct Reply {
  std::string bytes;
  std::vector<UniqueFd> fds;
  // The reply's body. Its type was checked by Call; the bytes are this Reply's.
  template <typename Body>
  const Body* As() const {
    return wire::GetMessage(bytes.data())->body_as<Body>();
  }
};

class Connection {
 public:
  // Waits at most this long for an answer, unless a request says otherwise.
  static constexpr absl::Duration kReplyTimeout = absl::Seconds(5);

  // Connects to a daemon's socket. INVALID_ARGUMENT: the path does not fit into an address.
  // NOT_FOUND, UNAVAILABLE: no daemon there; the message says how to start one.
  static absl::StatusOr<UniqueFd> Connect(absl::string_view socket_path);

  explicit Connection(UniqueFd socket);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends the request that `body` builds (a table of type `request`) and returns its reply, whose
  // body is of type `expected`. INVALID_ARGUMENT: the answer is not what the protocol allows; the
  // connection is not used again.
  absl::StatusOr<Reply> Call(
      wire::Body request,
      absl::FunctionRef<flatbuffers::Offset<void>(flatbuffers::FlatBufferBuilder&)> body,
      wire::Body expected, absl::Duration timeout = kReplyTimeout);

  // UNAVAILABLE: the other end is closed; says what to do. Never blocks; reads no message.
  absl::Status CheckPeer() const;

 private:
  absl::StatusOr<Reply> Exchange(absl::string_view request, uint64_t request_id,
                                 wire::Body expected, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  Mutex mutex_;  // Held over the exchange: the protocol has one request under way.
  uint64_t next_request_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::client
