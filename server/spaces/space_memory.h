// SPDX-License-Identifier: Apache-2.0
// Makes and destroys everything that a space holds of the kernel: two segments, the kick, slabs and
// extents.
// Thread: making and destroying block, so they run on a worker; between the two the space has it.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"
#include "server/spaces/space_plan.h"
#include "server/tiers/host_room.h"
#include "server/tiers/peer_memory.h"
#include "server/tiers/slot_dealing.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

struct SpaceMemory {
  UniqueFd client_segment;
  PeerMemory client_map;
  UniqueFd server_segment;
  MappedMemory server_map;  // Read-write; nobody else can.
  UniqueFd kick;            // eventfd, non-blocking.
  TierGrant host;
  TierGrant nvme;
  std::vector<SlotPlace> nvme_places;  // Of each NVMe slot, in `nvme`.
  // The contents word of each NVMe slot (gemini/shm/space_shm.h).
  std::vector<uint64_t> nvme_contents;
};

// Checks that the machine has the memory for the space, beside what it has `promised`.
// RESOURCE_EXHAUSTED: it has not; the message has the numbers.
absl::Status CheckRoomFor(const SpacePlan& plan, const PromisedDevice& promised);

// Errors: of CheckRoomFor, the stores and sealed_memfd.h. Nothing is held then.
absl::StatusOr<SpaceMemory> MakeSpaceMemory(const SpacePlan& plan, const PromisedDevice& promised,
                                            TierStore& host_store, TierStore& nvme_store);
void DestroySpaceMemory(SpaceMemory memory, TierStore& host_store, TierStore& nvme_store);

}  // namespace gemini::server
