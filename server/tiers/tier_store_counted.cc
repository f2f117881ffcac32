// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_counted.h"

#include <utility>

#include "gemini/system/status_macros.h"
#include "server/tiers/sealed_memfd.h"
#include "server/tiers/store_limit.h"

namespace gemini::server {
namespace {

class CountedTierStore : public TierStore {
 public:
  CountedTierStore(std::string gpu_uuid, int64_t capacity_bytes, int64_t slab_bytes)
      : gpu_uuid_(std::move(gpu_uuid)),
        slab_bytes_(slab_bytes),
        limit_(Tier::kDevice, capacity_bytes) {}

  Tier tier() const override { return Tier::kDevice; }
  int64_t capacity_bytes() const override { return limit_.capacity_bytes(); }
  int64_t granted_bytes() const override { return limit_.taken_bytes(); }
  int64_t slab_bytes() const override { return slab_bytes_; }
  std::string gpu_uuid() const override { return gpu_uuid_; }
  bool shares_memory() const override { return false; }

  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    const int64_t size_bytes = slot_bytes * num_slots;
    GEMINI_RETURN_IF_ERROR(limit_.Take(size_bytes));
    TierGrant grant = {.slot_bytes = slot_bytes, .slots_per_extent = 1, .extents = {}};
    for (int64_t i = 0; i < num_slots; ++i) {
      absl::StatusOr<UniqueFd> fd = MakeReadOnlyMemfd("gemini-counted-slab", "counted");
      if (!fd.ok()) {
        limit_.GiveBack(size_bytes);
        return fd.status();
      }
      grant.extents.push_back({.fd = *std::move(fd), .num_slots = 1});
    }
    return grant;
  }

  void Destroy(TierGrant grant) override { limit_.GiveBack(grant.size_bytes()); }

 private:
  const std::string gpu_uuid_;
  const int64_t slab_bytes_;
  StoreLimit limit_;
};

}  // namespace

std::unique_ptr<TierStore> MakeCountedTierStore(std::string gpu_uuid, int64_t capacity_bytes,
                                                int64_t slab_bytes) {
  return std::make_unique<CountedTierStore>(std::move(gpu_uuid), capacity_bytes, slab_bytes);
}

}  // namespace gemini::server
