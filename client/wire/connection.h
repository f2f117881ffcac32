// SPDX-License-Identifier: Apache-2.0
// Sends requests to a server on the control connection, one at a time, and returns a verified reply
// to each.
// Thread: any; requests wait for each other.
// Errors: UNAVAILABLE: the server hung up, and every later request fails with the same error. Or it
// did not answer in time: that request is given up, and others fail at once until its late answer
// has arrived, which is skipped. A Refusal becomes the Status that it carries, control characters
// escaped.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"
#include "gemini/wire_generated.h"

namespace gemini::client {

// A verified reply, with the descriptors `fds` of its message.
struct Reply {
  std::string bytes;
  std::vector<UniqueFd> fds;
  // Returns the reply's body. Call has checked its type; the bytes belong to this Reply.
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
  // NOT_FOUND, UNAVAILABLE: no daemon listens there; the message says how to start one.
  // PERMISSION_DENIED: the daemon belongs to another user, who is not root.
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

  // Returns UNAVAILABLE, with what to do, if the other end is closed. Never blocks and reads no
  // message.
  absl::Status CheckPeer() const;

  // Returns how many requests were given up because no answer arrived in time. Any thread.
  int64_t num_given_up() const { return num_given_up_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<Reply> Exchange(absl::string_view request, uint64_t request_id,
                                 wire::Body expected, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Receives the answer to `request_id`, if it arrives before `deadline` by MonotonicNow. 0 skips
  // the late answer, if that has arrived.
  absl::StatusOr<std::optional<Reply>> ReceiveReply(uint64_t request_id, absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status GiveUp(absl::string_view why);
  absl::Status Break(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  Mutex mutex_;  // Held over the exchange: the protocol has one request in flight.
  uint64_t next_request_id_ ABSL_GUARDED_BY(mutex_) = 1;
  // The request that was given up while its answer may still arrive; 0 if there is none.
  uint64_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> num_given_up_ = 0;
};

}  // namespace gemini::client
