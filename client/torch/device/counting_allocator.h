// SPDX-License-Identifier: Apache-2.0
// Puts a budget on Torch's CPU allocator: while a session is open, every CPU tensor allocation of
// the process is charged to the session's DEVICE budget as non-model data.
// Over budget: unpinned chunks are evicted. If that is not enough, the session latches
// RESOURCE_EXHAUSTED with the operator's name, and c10::OutOfMemoryError is thrown, because an
// allocator cannot report an error in another way.
// Large blocks that are freed while a session is open are kept for the allocations of the next step
// (kept_blocks.h). They are not charged, but they have to fit into the budget beside what is
// charged. Together with what operators have in use they take no more memory than operators once
// had in use alone.
// Thread: any. During Begin and End no other thread may allocate.
// Units: bytes as requested, rounded up to 64; 64-byte alignment, as Torch's own. Each block has 64
// bytes before it that are not charged.
// Life: it is installed in front of Torch's allocator at the first Begin, and stays installed. A
// block that was charged is released to its own session's budget, also after that session's end.
#pragma once
#include <cstdint>
#include <memory>

#include "client/session/session.h"

namespace gemini::client::hooks {

struct AllocationStats {
  int64_t charged_allocations = 0;
  int64_t over_budget = 0;  // Allocations after which the budget was exceeded: always 0.
  int64_t rooms_made = 0;   // Allocations that evicted chunks.
  int64_t refused = 0;      // Allocations that ended in OutOfMemoryError.
};

// Charges allocations to `session` from now on. One session at a time.
void BeginChargingAllocations(std::shared_ptr<Session> session);
// Stops charging. Blocks that are still allocated keep the Session object (not its memory) alive.
void EndChargingAllocations();
// Returns the statistics since the last Begin.
AllocationStats GetAllocationStats();

}  // namespace gemini::client::hooks
