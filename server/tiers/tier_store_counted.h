// SPDX-License-Identifier: Apache-2.0
// Counts DEVICE memory on a GPU whose memory processes cannot share (WSL2, some containers). Each
// client allocates the slabs that it was granted itself. A slab's descriptor stands for it, and
// holds no memory of DEVICE.
// Promise: all grants together fit the capacity. The server cannot make a client keep to its grant,
//          and only the driver keeps the next tenant from reading what a slab held.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/tiers/tier_store.h"

namespace gemini::server {

std::unique_ptr<TierStore> MakeCountedTierStore(std::string gpu_uuid, int64_t capacity_bytes,
                                                int64_t slab_bytes);

}  // namespace gemini::server
