// SPDX-License-Identifier: Apache-2.0
#include "client/wire/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// Waits until the socket has a message or is hung up. False when `deadline` has passed.
absl::StatusOr<bool> WaitReadable(int socket, absl::Duration deadline) {
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

// Whoever listens there is handed the tensors. Another user can have made a runtime directory first
// that all may write to, such as one below /tmp.
absl::Status CheckServersUser(int socket, absl::string_view socket_path) {
  ucred server = {};
  socklen_t size = sizeof(server);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0) {
    return ErrnoStatus(errno, absl::StrCat("ask who serves ", socket_path));
  }
  if (server.uid == ::geteuid() || server.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the server behind ", socket_path, " runs as uid ", server.uid, ", this program as uid ",
      ::geteuid(), ": use a runtime directory that is yours alone, or a server of your own"));
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
  GEMINI_RETURN_IF_ERROR(CheckServersUser(socket.get(), socket_path));
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
  if (unanswered_ != 0) {
    // Answers come in order: the late one before any to this request.
    const absl::StatusOr<std::optional<Reply>> late = ReceiveReply(0, MonotonicNow());
    if (!late.ok()) return Break(late.status());
    if (unanswered_ != 0) return GiveUp("the server has not answered an earlier request");
  }
  flatbuffers::FlatBufferBuilder builder;
  const uint64_t request_id = next_request_id_++;
  const flatbuffers::Offset<void> offset = body(builder);
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, request_id, request, offset));
  const absl::string_view bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                builder.GetSize());
  GEMINI_ASSIGN_OR_RETURN(Reply reply, Exchange(bytes, request_id, expected, timeout));
  if (const wire::Refusal* refusal = reply.As<wire::Refusal>(); refusal != nullptr) {
    return StatusOfRefusal(*refusal);
  }
  return reply;
}

absl::StatusOr<Reply> Connection::Exchange(absl::string_view request, uint64_t request_id,
                                           wire::Body expected, absl::Duration timeout) {
  const absl::Status sent = SendPacket(socket_.get(), request, {});
  // Nothing of it was sent, so no answer to it comes.
  if (absl::IsNotFound(sent)) return GiveUp("the server reads no requests");
  if (!sent.ok()) return Break(sent);
  absl::StatusOr<std::optional<Reply>> reply = ReceiveReply(request_id, MonotonicNow() + timeout);
  if (!reply.ok()) return Break(reply.status());
  if (!reply->has_value()) {
    unanswered_ = request_id;
    return GiveUp(absl::StrCat("the server did not answer within ", absl::FormatDuration(timeout)));
  }
  const wire::Body type = wire::GetMessage((*reply)->bytes.data())->body_type();
  if (type != expected && type != wire::Body::Refusal) {
    return Break(absl::InvalidArgumentError(absl::StrCat("the server answered request ", request_id,
                                                         " with a ", wire::EnumNameBody(type))));
  }
  return **std::move(reply);
}

absl::StatusOr<std::optional<Reply>> Connection::ReceiveReply(uint64_t request_id,
                                                              absl::Duration deadline) {
  for (;;) {
    GEMINI_ASSIGN_OR_RETURN(const bool readable, WaitReadable(socket_.get(), deadline));
    if (!readable) return std::nullopt;
    // A close with our request unread arrives as a reset: to the caller it is the same.
    GEMINI_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(socket_.get()));
    flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(packet.bytes.data()),
                                   packet.bytes.size());
    if (!wire::VerifyMessageBuffer(verifier)) {
      return absl::InvalidArgumentError("the server's answer is no valid message");
    }
    const wire::Message* message = wire::GetMessage(packet.bytes.data());
    // It comes late, and its descriptors are closed here. Another of the same id would be nonsense.
    if (unanswered_ != 0 && message->request_id() == unanswered_) {
      unanswered_ = 0;
      if (request_id == 0) return std::nullopt;
      continue;
    }
    if (message->request_id() != request_id || message->body() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the server answered request ", request_id, " with a ",
          wire::EnumNameBody(message->body_type()), " for request ", message->request_id()));
    }
    return Reply{std::move(packet.bytes), std::move(packet.fds)};
  }
}

absl::Status Connection::GiveUp(absl::string_view why) {
  num_given_up_.fetch_add(1, std::memory_order_relaxed);
  return absl::UnavailableError(
      absl::StrCat(why, ": is geminid, or this program's own server, stopped or overloaded?"));
}

absl::Status Connection::Break(absl::Status status) {
  broken_ = status;
  return status;
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
