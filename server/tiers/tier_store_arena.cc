// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_arena.h"

#include <utility>

#include "gemini/system/status_macros.h"
#include "server/tiers/sealed_memfd.h"
#include "server/tiers/store_limit.h"

namespace gemini::server {
namespace {

class ArenaTierStore : public TierStore {
 public:
  explicit ArenaTierStore(int64_t capacity_bytes) : limit_(Tier::kDevice, capacity_bytes) {}

  Tier tier() const override { return Tier::kDevice; }
  int64_t capacity_bytes() const override { return limit_.capacity_bytes(); }
  int64_t granted_bytes() const override { return limit_.taken_bytes(); }

  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    const int64_t size_bytes = slot_bytes * num_slots;
    GEMINI_RETURN_IF_ERROR(limit_.Take(size_bytes));
    TierGrant grant;
    grant.slot_bytes = slot_bytes;
    grant.slots_per_extent = num_slots;
    if (num_slots == 0) return grant;
    absl::StatusOr<UniqueFd> fd =
        MakeSealedMemfd("gemini-device-arena", size_bytes, MemfdPages::kOnDemand);
    if (!fd.ok()) {
      limit_.GiveBack(size_bytes);
      return fd.status();
    }
    grant.extents.push_back({*std::move(fd), num_slots, 0});
    return grant;
  }

  void Destroy(TierGrant grant) override {
    const int64_t size_bytes = grant.size_bytes();
    for (TierExtent& arena : grant.extents) DestroyMemfd(std::move(arena.fd), size_bytes);
    limit_.GiveBack(size_bytes);
  }

 private:
  StoreLimit limit_;
};

}  // namespace

std::unique_ptr<TierStore> MakeArenaTierStore(int64_t capacity_bytes) {
  return std::make_unique<ArenaTierStore>(capacity_bytes);
}

}  // namespace gemini::server
