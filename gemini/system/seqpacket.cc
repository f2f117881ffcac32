// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/seqpacket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16; the C library's headers may be older than the kernel.
#endif

namespace gemini {
namespace {

// Room for the descriptors of one message, aligned as cmsghdr wants.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxMessageFds)> bytes = {};
};

}  // namespace

absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds) {
  if (bytes.empty()) {
    return absl::InvalidArgumentError("an empty message: its receiver would take it for a hang-up");
  }
  if (bytes.size() > kMaxMessageBytes || fds.size() > kMaxMessageFds) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes.size(), " bytes and ",
                                                   fds.size(), " descriptors; at most ",
                                                   kMaxMessageBytes, " and ", kMaxMessageFds));
  }
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::NotFoundError("send: the peer does not read its messages");
    return ErrnoStatus(errno, "send a message");
  }
  return absl::OkStatus();
}

absl::StatusOr<Packet> ReceivePacket(int socket) {
  Packet packet;
  absl::Status received = ReceivePacketInto(socket, packet);
  if (!received.ok()) return received;
  return packet;
}

bool RefuseDescriptors(int socket) {
  const int off = 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) == 0;
}

bool NextHasDescriptors(int socket) {
  msghdr message = {};  // No room for descriptors: the kernel says that there were some.
  return ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
         (message.msg_flags & MSG_CTRUNC) != 0;
}

bool DropUntilDescriptors(int socket) {
  ::shutdown(socket, SHUT_RD);
  // An empty message reads as the end does, so the end is believed after more than a queue holds.
  constexpr int kMostQueued = 1024;
  for (int empty = 0; empty < kMostQueued;) {
    if (NextHasDescriptors(socket)) return true;
    msghdr message = {};
    const ssize_t size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && errno == EAGAIN) return false;
    if (size <= 0) ++empty;  // A reset is told once, before what waits.
  }
  return false;
}

absl::Status ReceivePacketInto(int socket, Packet& packet) {
  packet.bytes.resize(kMaxMessageBytes);
  iovec part = {packet.bytes.data(), packet.bytes.size()};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t size;
  while ((size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::NotFoundError("no message is waiting");
    return ErrnoStatus(errno, "receive a message");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  if (size == 0) return absl::UnavailableError("the peer closed the connection");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("a message, or its descriptors, did not fit and was dropped");
  }
  packet.bytes.resize(size);
  return absl::OkStatus();
}

}  // namespace gemini
