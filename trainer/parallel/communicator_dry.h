// SPDX-License-Identifier: Apache-2.0
// A rank's communicator for dry runs, in which there are no other ranks and tensors have no bytes
// (the meta device). Groups, counts and refusals are as usual; each exchange is done at once and
// touches no memory.
#pragma once
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

class CommunicatorDry final : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  Work Issue(Operation /*operation*/) override { return DoneWork(absl::OkStatus()); }
  absl::Status Prepare(const RankGroup& /*group*/) override { return absl::OkStatus(); }
};

}  // namespace gemini::trainer
