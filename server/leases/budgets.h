// SPDX-License-Identifier: Apache-2.0
// Keeps the ledger of every tier's bytes: capacity = leased + reclaiming + free, always.
// Owner:  the server thread; `owner` catches a call from any other thread.
// Units:  bytes. Amounts given are >= 0; they come from our own leases, already range-checked.
// Errors: Lease refuses and changes nothing. Returning more than was leased is our own bug and
//         stops.
#pragma once
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "gemini/system/owner_thread.h"
#include "gemini/tier.h"

namespace gemini::server {

struct TierBudget {
  int64_t capacity_bytes = 0;
  int64_t leased_bytes = 0;      // A lease has them, fenced or not.
  int64_t reclaiming_bytes = 0;  // Nobody's, but not yet given back by the kernel.
  int64_t free_bytes() const { return capacity_bytes - leased_bytes - reclaiming_bytes; }
};

class Budgets {
 public:
  // `owner` must outlive the ledger. Capacities are >= 0.
  Budgets(const OwnerThread& owner, const TierMap<int64_t>& capacity_bytes);

  // Takes bytes in all tiers or none. RESOURCE_EXHAUSTED: a tier has less free.
  absl::Status Lease(const TierMap<int64_t>& bytes);
  // Moves leased bytes to reclaiming: their holder is gone, the kernel still has them.
  void BeginReclaim(const TierMap<int64_t>& bytes);
  // Makes reclaiming bytes free.
  void FinishReclaim(const TierMap<int64_t>& bytes);

  TierBudget tier(Tier tier) const;

 private:
  const OwnerThread& owner_;
  TierMap<TierBudget> tiers_ ABSL_GUARDED_BY(owner_);
};

}  // namespace gemini::server
