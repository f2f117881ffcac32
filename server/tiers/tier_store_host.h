// SPDX-License-Identifier: Apache-2.0
// Makes HOST memory as slabs of about kHostSlabBytes each: memfds that are allocated with
// fallocate(2) and sealed. Their pages are spread over the NUMA nodes
// (server/tiers/interleaved_pages.h): whichever thread works on a chunk, it has the bandwidth of
// all.
#pragma once
#include <memory>

#include "server/tiers/tier_store.h"

namespace gemini::server {

// Returns the slots that a slab of this chunk size holds: at least 1.
int64_t HostSlotsPerSlab(int64_t slot_bytes);

std::unique_ptr<TierStore> MakeHostTierStore(int64_t capacity_bytes);

}  // namespace gemini::server
