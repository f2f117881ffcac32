// SPDX-License-Identifier: Apache-2.0
// Makes, grows and shrinks the DEVICE memory of one lease. If the store has slabs, these are added
// and removed; if not, pages of the grant's one extent are given back to the kernel.
// Thread: each function says which.
// Units:  bytes, multiples of DeviceGrainBytes.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

// Returns what the size of a lease's DEVICE memory is a multiple of: a slab or a page. Any thread.
int64_t DeviceGrainBytes(const TierStore& device);

// Makes one extent of `arena_bytes`, or, if the store has slabs, a grant without any. Blocks, so it
// runs on a worker. Errors: as TierStore::Make.
absl::StatusOr<TierGrant> MakeDeviceGrant(TierStore& device, int64_t arena_bytes);

struct MadeSlabs {
  std::vector<TierExtent> slabs;
  absl::Status status;  // Of the first slab that could not be made.
};
// Makes `count` slabs, or fewer if one cannot be made. Blocks, so it runs on a worker.
MadeSlabs MakeSlabs(TierStore& device, int64_t count);

// Shrinks the grant to `keep_bytes`. Returns a job that gives the rest back to the machine, which
// blocks, so it runs on a worker. Until it has run, the grant must not be destroyed. `device`
// outlives it.
std::function<void()> CutDeviceGrant(TierStore& device, TierGrant& grant, int64_t keep_bytes);

}  // namespace gemini::server
