// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_host.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gemini/protocol.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/interleaved_pages.h"
#include "server/tiers/sealed_memfd.h"
#include "server/tiers/store_limit.h"

namespace gemini::server {
namespace {

class HostTierStore : public TierStore {
 public:
  explicit HostTierStore(int64_t capacity_bytes)
      : nodes_(NodesOfSlabs()), limit_(Tier::kHost, capacity_bytes) {}

  Tier tier() const override { return Tier::kHost; }
  int64_t capacity_bytes() const override { return limit_.capacity_bytes(); }
  int64_t granted_bytes() const override { return limit_.taken_bytes(); }

  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    const int64_t size_bytes = slot_bytes * num_slots;
    GEMINI_RETURN_IF_ERROR(limit_.Take(size_bytes));
    absl::StatusOr<TierGrant> grant = MakeSlabs(slot_bytes, num_slots);
    if (!grant.ok()) limit_.GiveBack(size_bytes);
    return grant;
  }

  void Destroy(TierGrant grant) override {
    const int64_t size_bytes = grant.size_bytes();
    for (TierExtent& slab : grant.extents) {
      DestroyMemfd(std::move(slab.fd), slab.num_slots * grant.slot_bytes);
    }
    limit_.GiveBack(size_bytes);
  }

 private:
  absl::StatusOr<TierGrant> MakeSlabs(int64_t slot_bytes, int64_t num_slots) const {
    const InterleavedPages interleaved(nodes_);
    TierGrant grant;
    grant.slot_bytes = slot_bytes;
    grant.slots_per_extent = HostSlotsPerSlab(slot_bytes);
    for (int64_t made = 0; made < num_slots;) {
      const int64_t slots = std::min(grant.slots_per_extent, num_slots - made);
      GEMINI_ASSIGN_OR_RETURN(
          UniqueFd fd, MakeSealedMemfd("gemini-slab", slots * slot_bytes, MemfdPages::kHuge));
      grant.extents.push_back({std::move(fd), slots, 0});
      made += slots;
    }
    return grant;
  }

  const std::vector<int> nodes_;
  StoreLimit limit_;
};

}  // namespace

int64_t HostSlotsPerSlab(int64_t slot_bytes) {
  return std::max<int64_t>(1, kHostSlabBytes / slot_bytes);
}

std::unique_ptr<TierStore> MakeHostTierStore(int64_t capacity_bytes) {
  return std::make_unique<HostTierStore>(capacity_bytes);
}

}  // namespace gemini::server
