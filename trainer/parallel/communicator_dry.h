// SPDX-License-Identifier: Apache-2.0
// Implements Communicator for dry runs, in which there are no other ranks and tensors have no bytes
// (the meta device). Groups, counts and refusals are as usual; each exchange is done at once and
// touches no memory.
#pragma once
#include <cstdint>
#include <string>

#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// What a rank would have exchanged.
struct DryExchange {
  int64_t number = 0;  // Among all of the rank, from 0 on.
  CollectiveKind kind = CollectiveKind::kAllGather;
  const RankGroup* group = nullptr;
  // How many bytes a part has, or what is broadcast, or the message. Parts of an all-reduce are
  // filled up to one size.
  int64_t part_bytes = 0;
  // The place in the group of the rank at a message's other end, or of the one that broadcasts.
  int64_t place = 0;
  int64_t tag = 0;
  std::string site;
};

// Hears, on the thread that issues them, what a dry run exchanges.
class DryListener {
 public:
  virtual ~DryListener() = default;
  virtual void Issued(const DryExchange& exchange) = 0;
  // The rank waits for the exchange of this number.
  virtual void Awaited(int64_t number) = 0;
};

class CommunicatorDry final : public Communicator {
 public:
  // The listener outlives this and all work; it may be null.
  CommunicatorDry(int64_t rank, int64_t num_ranks, DryListener* listener = nullptr)
      : Communicator(rank, num_ranks), listener_(listener) {}

 protected:
  Work Issue(Operation operation) override;
  absl::Status Prepare(const RankGroup& /*group*/) override { return absl::OkStatus(); }

 private:
  class DryWork;

  DryListener* const listener_;
  int64_t num_exchanges_ = 0;
};

}  // namespace gemini::trainer
