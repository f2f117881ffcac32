// SPDX-License-Identifier: Apache-2.0
// Messages with descriptors over a connected AF_UNIX SOCK_SEQPACKET socket: one call, one message.
// Thread: a socket may be used by one sender and one receiver at a time. Both calls retry EINTR.
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

// Sends one message; MSG_NOSIGNAL. NOT_FOUND: there is no room for it (non-blocking socket), or
// there was none for its send timeout. UNAVAILABLE: the peer is gone, or has shut down its reading.
// INVALID_ARGUMENT: empty (it reads as a hang-up), over kMaxMessageBytes or kMaxMessageFds.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds);

// Receives one message; blocks if the socket does. UNAVAILABLE: the peer hung up, or sent an empty
// message. NOT_FOUND: a non-blocking socket has nothing. INVALID_ARGUMENT: the message or its
// descriptors were truncated; it is dropped, and the next one can be received.
absl::StatusOr<Packet> ReceivePacket(int socket);
// The same into `packet`, which also on an error holds the descriptors that came: for a receiver
// that may not close them itself.
absl::Status ReceivePacketInto(int socket, Packet& packet);

// Has the kernel refuse, at the sender, messages with descriptors to this socket; sockets that a
// listening one accepts inherit it. Closing what a peer made up may block: a socket that lingers, a
// FUSE file. False: older than Linux 6.16.
bool RefuseDescriptors(int socket);

// For a socket on which they could not be refused. Whether the next message of a non-blocking
// socket has descriptors: it is left where it is, and nothing of it is opened here.
bool NextHasDescriptors(int socket);
// Takes no more messages and drops those that wait, up to the first with descriptors. True: there
// is one, and closing the socket closes what it holds.
bool DropUntilDescriptors(int socket);

}  // namespace gemini
