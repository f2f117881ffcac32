// SPDX-License-Identifier: Apache-2.0
// What requests about slabs do: sends those of a space, which are made with it, and those of a
// lease's DEVICE, which are made when they are asked for and given back when they are not.
// Owner:  the server thread. Slabs of DEVICE are made and destroyed by a worker.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>

#include "server/sessions.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class SlabDesk {
 public:
  // Both must outlive this.
  SlabDesk(TierStore& device, Sessions& sessions) : device_(device), sessions_(sessions) {}

  absl::Status Handle(PeerSession& session, uint64_t id, const TakeSlabsRequest& take);
  absl::Status Handle(PeerSession& session, uint64_t id, const KeepSlabsRequest& keep);

 private:
  absl::Status TakeDeviceSlabs(PeerSession& session, uint64_t id, const TakeSlabsRequest& take);

  TierStore& device_;
  Sessions& sessions_;
};

}  // namespace gemini::server
