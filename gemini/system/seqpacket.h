// SPDX-License-Identifier: Apache-2.0
// Sends and receives messages with descriptors over a connected AF_UNIX SOCK_SEQPACKET socket, one
// message with each call.
// Thread: one sender and one receiver may use a socket at a time. Both calls retry EINTR.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/system/unique_fd.h"

namespace gemini {

inline constexpr int64_t kMaxMessageBytes = 64 * 1024;
// The kernel takes at most 253 descriptors a message (SCM_MAX_FD).
inline constexpr int kMaxMessageFds = 253;

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;  // Received with CLOEXEC.
};

// Sends one message, with MSG_NOSIGNAL. NOT_FOUND: there is no room for it (non-blocking socket),
// or there was none during the send timeout. UNAVAILABLE: the peer is gone, or has shut down its
// reading. INVALID_ARGUMENT: it is empty, which reads as a hang-up, or over kMaxMessageBytes or
// kMaxMessageFds.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds);

// Receives one message; blocks if the socket does. UNAVAILABLE: the peer hung up, or sent an empty
// message. NOT_FOUND: a non-blocking socket has nothing. INVALID_ARGUMENT: the message or its
// descriptors were truncated; it is dropped, and the next one can be received.
absl::StatusOr<Packet> ReceivePacket(int socket);
// As ReceivePacket, into `packet`. Even after an error `packet` holds the descriptors received, for
// a caller that must not close them itself.
absl::Status ReceivePacketInto(int socket, Packet& packet);

// Makes the kernel refuse, at the sender, messages with descriptors to this socket and to sockets
// that it accepts if it is a listening one. Closing a descriptor that a peer chose may block, as
// for a socket that lingers or a FUSE file. Returns false before Linux 6.16, which cannot do this.
bool RefuseDescriptors(int socket);

// Returns whether the next message of a non-blocking socket has descriptors, for a socket that
// cannot refuse them. The message stays in the socket, and none of its descriptors is opened here.
bool NextHasDescriptors(int socket);
// Shuts down receiving and drops the messages that are queued, up to the first with descriptors.
// Returns true if there is such a message; closing the socket closes what it holds.
bool DropUntilDescriptors(int socket);

}  // namespace gemini
