// SPDX-License-Identifier: Apache-2.0
// The book of all leases: what each may use and was asked to give up, beside the ledger of every
// tier's bytes. Whoever changes a lease's terms changes the ledger with them, here.
// Owner:  the server thread; the ledger catches a call from any other.
// Units:  bytes.
// Errors: none. A change that the ledger has no bytes for is our own bug and stops.
#pragma once
#include <cstdint>
#include <map>

#include "gemini/system/owner_thread.h"
#include "gemini/tier.h"
#include "server/leases/budgets.h"

namespace gemini::server {

struct LeaseTerms {
  TierMap<int64_t> want;  // DEVICE: at most the capacity.
  TierMap<int64_t> floor;
  TierMap<int64_t> granted;   // DEVICE: until the client acknowledged that it vacated some.
  int64_t device_target = 0;  // What it may use from now on; below `granted`: not vacated yet.
  bool takes_epochs = false;
  bool made = false;        // Its memory is there, and it can be told of targets.
  bool fenced = false;      // Its client has no right to it any more.
  bool reclaiming = false;  // Nobody uses it any more; the kernel is to have its bytes back.
};

class LeaseBook {
 public:
  // `owner` must outlive the book. Capacities are >= 0.
  LeaseBook(const OwnerThread& owner, const TierMap<int64_t>& capacity_bytes)
      : budgets_(owner, capacity_bytes) {}

  TierBudget tier(Tier tier) const { return budgets_.tier(tier); }
  // By session, of which each has one lease at most.
  const std::map<uint64_t, LeaseTerms>& leases() const { return leases_; }

  // Takes what is granted, which must be free. The terms stay where they are until FinishReclaim.
  const LeaseTerms& Open(uint64_t session, const LeaseTerms& terms);
  // The lease's memory was made.
  void SetMade(uint64_t session) { leases_.at(session).made = true; }
  void SetDeviceFloor(uint64_t session, int64_t bytes);
  // What is above the lease's grant must be free, and is its own at once. What is below stays its
  // own until VacateDevice.
  void SetDeviceTarget(uint64_t session, int64_t bytes);
  // The client uses no more than its target: takes the rest from the lease. Returns these bytes,
  // which are free once they are given to FinishVacating.
  TierMap<int64_t> VacateDevice(uint64_t session);
  void FinishVacating(const TierMap<int64_t>& bytes) { budgets_.FinishReclaim(bytes); }
  void Fence(uint64_t session) { leases_.at(session).fenced = true; }
  // Its bytes are on their way back to the kernel.
  void BeginReclaim(uint64_t session);
  // They are free, and the lease is gone.
  void FinishReclaim(uint64_t session);

 private:
  Budgets budgets_;
  std::map<uint64_t, LeaseTerms> leases_;
};

}  // namespace gemini::server
