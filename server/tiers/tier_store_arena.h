// SPDX-License-Identifier: Apache-2.0
// Makes DEVICE memory on a machine without a GPU: a sealed memfd plays its part. Its pages are not
// allocated ahead: Torch's own allocations share that budget and take most of it.
#pragma once
#include <memory>

#include "server/tiers/tier_store.h"

namespace gemini::server {

std::unique_ptr<TierStore> MakeArenaTierStore(int64_t capacity_bytes);

}  // namespace gemini::server
