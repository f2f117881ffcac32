// SPDX-License-Identifier: Apache-2.0
// Torch's CPU allocator with a budget: while a session is open, every CPU tensor allocation of the
// process is charged to its DEVICE budget as non-model data.
// Over budget: unpinned chunks are evicted; if that is not enough, the session latches
//         RESOURCE_EXHAUSTED with the operator's name, and c10::OutOfMemoryError is thrown: the one
//         exception of ours, because allocators have no other answer.
// Thread: any. Begin and End: no allocation runs meanwhile on another thread.
// Units:  bytes as asked for, rounded up to 64; 64-byte alignment, as Torch's own. Each block has
// 64
//         bytes before it that are not charged.
// Life:   installed in front of Torch's allocator at the first Begin, for good. A block that was
//         charged is given back to its own session's budget, also after that session's end.
#pragma once
#include <cstdint>
#include <memory>

#include "client/session/session.h"

namespace gemini::client::hooks {

struct AllocationStats {
  int64_t charged_allocations = 0;
  int64_t over_budget = 0;  // After how many of them the budget was exceeded: never, so 0.
  int64_t rooms_made = 0;   // How many needed chunks to give way.
  int64_t refused = 0;      // How many ended in OutOfMemoryError.
};

// Charges allocations to `session` from now on. One session at a time.
void BeginChargingAllocations(std::shared_ptr<Session> session);
// Stops. Blocks that live on keep the Session object (not its memory) alive.
void EndChargingAllocations();
// Since the last Begin.
AllocationStats GetAllocationStats();

}  // namespace gemini::client::hooks
