// SPDX-License-Identifier: Apache-2.0
// Keeps the book of all leases: what each may use and was asked to give up, beside the ledger of
// every tier's bytes. Whoever changes a lease's terms changes the ledger with them, here.
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
  // What the lease has taken. DEVICE falls when the client acknowledges that it has vacated some.
  TierMap<int64_t> granted;
  // What the client may use from now on. Below `granted`, the client has yet to vacate some.
  int64_t device_target = 0;
  bool takes_epochs = false;
  bool made = false;        // Its memory exists, and targets can be posted to its segment.
  bool fenced = false;      // Its client may no longer use it.
  bool reclaiming = false;  // Nobody uses it, and its bytes are being given back to the kernel.
};

class LeaseBook {
 public:
  // `owner` must outlive the book. Capacities are >= 0.
  LeaseBook(const OwnerThread& owner, const TierMap<int64_t>& capacity_bytes)
      : budgets_(owner, capacity_bytes) {}

  TierBudget tier(Tier tier) const { return budgets_.tier(tier); }
  // Returns the terms by session. A session has at most one lease.
  const std::map<uint64_t, LeaseTerms>& leases() const { return leases_; }

  // Takes what is granted, which must be free. The reference is valid until FinishReclaim.
  const LeaseTerms& Open(uint64_t session, const LeaseTerms& terms);
  // Records that the lease's memory was made.
  void SetMade(uint64_t session) { leases_.at(session).made = true; }
  void SetDeviceFloor(uint64_t session, int64_t bytes);
  // Sets the target. A target above the grant raises the grant at once, by bytes that must be free.
  // A target below it leaves the grant until VacateDevice.
  void SetDeviceTarget(uint64_t session, int64_t bytes);
  // Lowers the grant to the target, because the client uses no more. Returns the bytes taken away.
  // They become free when they are passed to FinishVacating.
  TierMap<int64_t> VacateDevice(uint64_t session);
  void FinishVacating(const TierMap<int64_t>& bytes) { budgets_.FinishReclaim(bytes); }
  void Fence(uint64_t session) { leases_.at(session).fenced = true; }
  // Moves the lease's bytes from leased to reclaiming.
  void BeginReclaim(uint64_t session);
  // Frees the lease's bytes and removes the lease.
  void FinishReclaim(uint64_t session);

 private:
  Budgets budgets_;
  std::map<uint64_t, LeaseTerms> leases_;
};

}  // namespace gemini::server
