// SPDX-License-Identifier: Apache-2.0
// Holds the memory of a server's three tiers.
// Thread: any, as TierStore.
#pragma once
#include <memory>

#include "server/tiers/tier_store.h"

namespace gemini::server {

struct ServerStores {
  std::unique_ptr<TierStore> device;
  std::unique_ptr<TierStore> host;
  std::unique_ptr<TierStore> nvme;
};

}  // namespace gemini::server
