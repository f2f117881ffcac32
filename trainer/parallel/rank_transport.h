// SPDX-License-Identifier: Apache-2.0
// Declares the interface by which CommunicatorHost moves bytes between ranks: one call for each
// exchange, which it begins and does not wait for. Ranks of a group make their collectives in one
// order, one at a time; messages may be under way meanwhile.
// Thread: one, which owns the transport.
// Memory: of a call, untouched until its transfer is done.
// Errors: what fails once fails the job; nothing is tried again.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_bell.h"

namespace gemini::trainer {

class Transfer {
 public:
  // It is destroyed when it is done, or never: before that its memory may still be written to.
  virtual ~Transfer() = default;
  // Looks whether it is done, and helps it on.
  virtual absl::StatusOr<bool> Test() = 0;
};
using BegunTransfer = absl::StatusOr<std::unique_ptr<Transfer>>;

class RankTransport {
 public:
  virtual ~RankTransport() = default;

  // Makes the group's exchange apart from that of others. All ranks of the job call it with theirs
  // of one id; it may block until they have. The group of id 0 is there.
  virtual absl::Status Prepare(const RankGroup& group) = 0;

  // These do what Communicator's of the same names do, with any number of bytes.
  virtual BegunTransfer AllGather(const RankGroup& group, const std::byte* part, std::byte* all,
                                  int64_t part_bytes) = 0;
  virtual BegunTransfer AllToAll(const RankGroup& group, const std::byte* to_each,
                                 std::byte* from_each, int64_t bytes_each) = 0;
  virtual BegunTransfer Broadcast(const RankGroup& group, std::byte* bytes, int64_t size_bytes,
                                  int64_t place) = 0;
  virtual BegunTransfer Send(const RankGroup& group, const std::byte* bytes, int64_t size_bytes,
                             int64_t to_place, int64_t tag) = 0;
  virtual BegunTransfer Receive(const RankGroup& group, std::byte* bytes, int64_t size_bytes,
                                int64_t from_place, int64_t tag) = 0;

  // Returns the bell by which the owner sleeps between two tests of its transfers. Any thread may
  // ring it for the owner. A transport may ring it when another rank begins or finishes its part of
  // a transfer. The default transport does not, so the owner tests its transfers again and again.
  virtual RankBell& bell() { return bell_; }

 private:
  RankBell bell_;
};

}  // namespace gemini::trainer
