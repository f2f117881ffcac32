// SPDX-License-Identifier: Apache-2.0
// Counts the host memory that leases were granted as DEVICE and have not touched yet. It still
// counts as free memory of the machine, so whoever grants more of that must leave it.
// Thread: the server thread.
#pragma once
#include <cstdint>

#include "server/sessions.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

// Returns the bytes of all sessions' leases that were granted without pages. 0 where DEVICE is a
// GPU's.
int64_t PromisedHostBytes(const Sessions& sessions, const TierStore& device);

}  // namespace gemini::server
