// SPDX-License-Identifier: Apache-2.0
#include "server/leases/budgets.h"

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/check.h"

namespace gemini::server {

Budgets::Budgets(const OwnerThread& owner, const TierMap<int64_t>& capacity_bytes) : owner_(owner) {
  for (Tier tier : kAllTiers) {
    GEMINI_CHECK(capacity_bytes[tier] >= 0);
    tiers_[tier].capacity_bytes = capacity_bytes[tier];
  }
}

absl::Status Budgets::Lease(const TierMap<int64_t>& bytes) {
  owner_.AssertHere();
  for (Tier tier : kAllTiers) {
    GEMINI_CHECK(bytes[tier] >= 0);
    if (bytes[tier] > tiers_[tier].free_bytes()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("needs ", FormatByteSize(bytes[tier]), " of ", TierName(tier), ", ",
                       FormatByteSize(tiers_[tier].free_bytes()), " free"));
    }
  }
  for (Tier tier : kAllTiers) tiers_[tier].leased_bytes += bytes[tier];
  return absl::OkStatus();
}

void Budgets::BeginReclaim(const TierMap<int64_t>& bytes) {
  owner_.AssertHere();
  for (Tier tier : kAllTiers) {
    GEMINI_CHECK(bytes[tier] >= 0 && bytes[tier] <= tiers_[tier].leased_bytes);
    tiers_[tier].leased_bytes -= bytes[tier];
    tiers_[tier].reclaiming_bytes += bytes[tier];
  }
}

void Budgets::FinishReclaim(const TierMap<int64_t>& bytes) {
  owner_.AssertHere();
  for (Tier tier : kAllTiers) {
    GEMINI_CHECK(bytes[tier] >= 0 && bytes[tier] <= tiers_[tier].reclaiming_bytes);
    tiers_[tier].reclaiming_bytes -= bytes[tier];
  }
}

TierBudget Budgets::tier(Tier tier) const {
  owner_.AssertHere();
  return tiers_[tier];
}

}  // namespace gemini::server
