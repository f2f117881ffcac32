// SPDX-License-Identifier: Apache-2.0
// Handles requests for slabs, the units in which memory is granted. It sends the HOST slabs of a
// space, which are made with the space. It makes the DEVICE slabs of a lease when they are
// requested, and destroys those that the client does not keep.
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
