// SPDX-License-Identifier: Apache-2.0
// Where the slots of an NVMe grant lie: dealt over its extents in turn, so that chunks that move at
// the same time keep all disks busy, as stripes do (Patterson et al., SIGMOD 1988). Whole chunks,
// not parts of them: a slot needs one disk only.
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

// By slot of the grant. Of the slots up to any, each extent has its part by its size, to less than
// one slot for two extents of any sizes or for any number of equal ones. O(slots * extents).
std::vector<SlotPlace> DealSlots(const TierGrant& grant);

}  // namespace gemini::server
