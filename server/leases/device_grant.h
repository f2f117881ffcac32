// SPDX-License-Identifier: Apache-2.0
// A lease's DEVICE memory while the lease changes: of a store with slabs whole ones come and go, of
// one without the pages of its one extent.
// Thread: as each says.
// Units:  bytes, multiples of DeviceGrainBytes.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

// What a lease's DEVICE memory is a multiple of. Any thread.
int64_t DeviceGrainBytes(const TierStore& device);

// Makes the one extent of `arena_bytes`, or a grant that has no slabs yet. Blocks: for a worker.
// Errors: as TierStore::Make.
absl::StatusOr<TierGrant> MakeDeviceGrant(TierStore& device, int64_t arena_bytes);

// So many slabs, or as many as there can be.
struct MadeSlabs {
  std::vector<TierExtent> slabs;
  absl::Status status;  // Of the first that could not be made.
};
// Blocks: for a worker.
MadeSlabs MakeSlabs(TierStore& device, int64_t count);

// Cuts the grant to `keep_bytes`, and returns what gives the rest back to the machine, for a
// worker: it blocks. Until that has run the grant stays where it is. `device` outlives it.
std::function<void()> CutDeviceGrant(TierStore& device, TierGrant& grant, int64_t keep_bytes);

}  // namespace gemini::server
