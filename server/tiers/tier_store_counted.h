// SPDX-License-Identifier: Apache-2.0
// DEVICE on a GPU whose memory processes cannot share (WSL2, some containers): slabs are counted
// here, and each client makes those that it was granted itself. A descriptor stands for one, and no
// byte of DEVICE is behind it.
// Promise: what clients are granted fits the capacity. That they keep to it, and what of a slab the
//          next tenant could read, is theirs and the driver's.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/tiers/tier_store.h"

namespace gemini::server {

std::unique_ptr<TierStore> MakeCountedTierStore(std::string gpu_uuid, int64_t capacity_bytes,
                                                int64_t slab_bytes);

}  // namespace gemini::server
