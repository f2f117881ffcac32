// SPDX-License-Identifier: Apache-2.0
// A lease's DEVICE memory while the lease changes: of a store with slabs whole ones come and go, of one without the
// pages of its one extent.
// Thread: as each says.
// Units:  bytes, multiples of DeviceGrainBytes.
#pragma once
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "server/tier_store.h"

namespace gemini::server {

// What a lease's DEVICE memory is a multiple of. Any thread.
int64_t DeviceGrainBytes(const TierStore& device);

// Makes `granted_bytes`, with room in the extent to grow to `arena_bytes` where there are no slabs. Blocks: for a worker.
// Errors: as TierStore::Make.
absl::StatusOr<TierGrant> MakeDeviceGrant(TierStore& device, int64_t granted_bytes,
                                          int64_t arena_bytes);

// Cuts the grant to `keep_bytes`, and returns what gives the rest back to the machine, for a worker: it blocks. Until that
// has run the grant stays where it is. `device` outlives it.
std::function<void()> CutDeviceGrant(TierStore& device, TierGrant& grant, int64_t keep_bytes);

}  // namespace gemini::server
