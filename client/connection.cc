// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gemini/errno_status.h"
#include "gemini/monotonic_clock.h"
#include "gemini/seqpacket.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// Waits until the socket has a message or is hung up. False when `timeout` has passed.
absl::StatusOr<bool> WaitReadable(int socket, absl::Duration timeout) {
  const absl::Duration deadline = MonotonicNow() + timeout;
  for (;;) {
    const int64_t left_ms =
        std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - MonotonicNow()) + 1);
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30)));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "wait for the server's answer");
    if (count == 0 && MonotonicNow() >= deadline) return false;
  }
}

std::string WithoutControlCharacters(absl::string_view text) {
  std::string clean(text);
  std::replace_if(clean.begin(), clean.end(), absl::ascii_iscntrl, '?');
  return clean;
}

absl::Status StatusOfRefusal(const wire::Refusal& refusal) {
  const bool known = refusal.code() > 0 && refusal.code() <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(refusal.code()) : absl::StatusCode::kUnknown,
      refusal.message() == nullptr
          ? "the server refused without a reason"
          : WithoutControlCharacters({refusal.message()->c_str(), refusal.message()->size()}));
}

}  // namespace

absl::StatusOr<UniqueFd> Connection::Connect(absl::string_view socket_path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.empty() || socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path '", socket_path, "' has ", socket_path.size(),
                     " bytes; an address takes 1 to ", sizeof(address.sun_path) - 1,
                     ": choose a shorter runtime directory"));
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const absl::Status status = ErrnoStatus(errno, absl::StrCat("connect to ", socket_path));
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(),
                     ": is geminid running with this runtime directory? Start it, or "
                     "leave --daemon out to run without one"));
  }
  return socket;
}

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)) {
  // A server that reads nothing makes a send fail instead of blocking for ever.
  const timeval limit = absl::ToTimeval(kReplyTimeout);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

absl::StatusOr<Reply> Connection::Call(
    wire::Body request,
    absl::FunctionRef<flatbuffers::Offset<void>(flatbuffers::FlatBufferBuilder&)> body,
    wire::Body expected, absl::Duration timeout) {
  MutexLock lock(mutex_);
  if (!broken_.ok()) return broken_;
  flatbuffers::FlatBufferBuilder builder;
  const uint64_t request_id = next_request_id_++;
  const flatbuffers::Offset<void> offset = body(builder);
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, request_id, request, offset));
  const absl::string_view bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                builder.GetSize());
  absl::StatusOr<Reply> reply = Exchange(bytes, request_id, expected, timeout);
  if (!reply.ok()) {
    // An answer that comes too late, or a strange one, would be taken for the next one's.
    broken_ = reply.status();
    return reply;
  }
  if (const wire::Refusal* refusal = reply->As<wire::Refusal>(); refusal != nullptr) {
    return StatusOfRefusal(*refusal);
  }
  return reply;
}

absl::StatusOr<Reply> Connection::Exchange(absl::string_view request, uint64_t request_id,
                                           wire::Body expected, absl::Duration timeout) {
  const absl::Status sent = SendPacket(socket_.get(), request, {});
  if (absl::IsNotFound(sent)) {
    return absl::UnavailableError(
        "the server reads no requests: is geminid stopped or overloaded?");
  }
  if (!sent.ok()) return sent;
  GEMINI_ASSIGN_OR_RETURN(const bool readable, WaitReadable(socket_.get(), timeout));
  if (!readable) {
    return absl::UnavailableError(absl::StrCat("the server did not answer within ",
                                               absl::FormatDuration(timeout),
                                               ": is geminid stopped or overloaded?"));
  }
  absl::StatusOr<Packet> packet = ReceivePacket(socket_.get());
  if (!packet.ok()) {
    // A close with our request unread arrives as a reset: to the caller it is the same.
    return packet.status();
  }
  Reply reply = {std::move(packet->bytes), std::move(packet->fds)};
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(reply.bytes.data()),
                                 reply.bytes.size());
  if (!wire::VerifyMessageBuffer(verifier)) {
    return absl::InvalidArgumentError("the server's answer is no valid message");
  }
  const wire::Message* message = wire::GetMessage(reply.bytes.data());
  if (message->request_id() != request_id || message->body() == nullptr ||
      (message->body_type() != expected && message->body_type() != wire::Body::Refusal)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the server answered request ", request_id, " with a ",
        wire::EnumNameBody(message->body_type()), " for request ", message->request_id()));
  }
  return reply;
}

absl::Status Connection::CheckPeer() const {
  pollfd entry = {.fd = socket_.get(), .events = 0, .revents = 0};
  const bool gone =
      ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
  if (!gone) return absl::OkStatus();
  return absl::UnavailableError(
      "the server is gone: resume from the last save once geminid runs again");
}

}  // namespace gemini::client
