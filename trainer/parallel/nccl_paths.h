// SPDX-License-Identifier: Apache-2.0
// Chooses the communicators and streams by which the messages of a group go by NCCL. NCCL runs what
// one communicator is told in the order in which it is told, and one stream its exchanges likewise.
// A message that waits for its receiver would hold up what comes behind it, which that receiver may
// wait for. So each way has a communicator and a stream of its own.
// Ways:  with kNeighbours there is one for each direction of each pair of neighbours, by the tag's
//        parity: what a pipeline sends forward waits for nothing that it sends back, and what a
//        rank receives for nothing that it sends. With the others there are two in a group: to
//        higher places, and to lower ones. So two ranks may send to each other before they receive.
// Order: messages of one way between two ranks are received as they are sent, whatever their tags.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/exchange_device.h"
#include "trainer/parallel/nccl_comms.h"

namespace gemini::trainer {

// How one message goes.
struct NcclPath {
  NcclComm* comm = nullptr;
  ExchangeStream* stream = nullptr;
  int peer = 0;  // The other's rank in `comm`.
};

class NcclPaths {
 public:
  // `group` and the communicators of Connect outlive this, and it outlives what NCCL does on its
  // streams: behind a failure it stays until the communicators are aborted and gone.
  NcclPaths(const RankGroup& group, MessagePaths paths) : group_(group), paths_(paths) {}

  // COLLECTIVE over `world`, with one group of each rank's; once. Makes the ways and connects their
  // ranks, for which it blocks, for the limit at most. DEADLINE_EXCEEDED: not all ranks of the
  // group have come; names it. Others: as NcclComms and the device.
  absl::Status Connect(NcclComms& comms, ExchangeDevice& device, NcclComm* world,
                       std::chrono::steady_clock::duration limit);

  // Returns how a message to the rank at `place`, or from it, goes. FAILED_PRECONDITION: the group
  // was not prepared for one between these two.
  absl::StatusOr<NcclPath> Find(CollectiveKind kind, int64_t place, int64_t tag) const;

 private:
  // One direction. With kNeighbours a rank has two ends of each, with other ranks, else one.
  enum Direction : size_t { kUp, kDown };
  struct End {
    NcclComm* comm = nullptr;
    std::unique_ptr<ExchangeStream> stream;
  };

  absl::Status MakeEnd(NcclComms& comms, ExchangeDevice& device, NcclComm* world, int64_t color,
                       int64_t key, End& end);
  absl::Status MakeForNeighbours(NcclComms& comms, ExchangeDevice& device, NcclComm* world);
  absl::Status MakeForAll(NcclComms& comms, ExchangeDevice& device, NcclComm* world);
  // Exchanges a byte on every way, which connects its ranks.
  absl::Status ExchangeBytes(NcclComms& comms, ExchangeDevice& device,
                             std::chrono::steady_clock::duration limit);
  // Whether there are messages between these places.
  bool Goes(int64_t from, int64_t to) const;

  const RankGroup& group_;
  const MessagePaths paths_;
  std::array<End, 2> senders_;    // By direction. With kNeighbours; else of both, below.
  std::array<End, 2> receivers_;  // With kNeighbours.
};

}  // namespace gemini::trainer
