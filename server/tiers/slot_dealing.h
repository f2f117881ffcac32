// SPDX-License-Identifier: Apache-2.0
// Says where the slots of an NVMe grant lie. They are dealt over its extents in turn, so that
// chunks that move at the same time keep all disks busy, as stripes do (Patterson et al., SIGMOD
// 1988). Whole chunks, not parts of them: a slot needs one disk only.
// Thread: any.
#pragma once
#include <cstdint>
#include <vector>

#include "server/tiers/tier_store.h"

namespace gemini::server {

struct SlotPlace {
  int64_t extent = 0;
  int64_t slot = 0;  // In the extent.
  bool operator==(const SlotPlace&) const = default;
};

// Returns the place of each slot of the grant. Each prefix of the slots is divided in proportion to
// the sizes of the extents, with an error below one slot for two extents, and for any number of
// equal ones. O(slots * extents).
std::vector<SlotPlace> DealSlots(const TierGrant& grant);

}  // namespace gemini::server
