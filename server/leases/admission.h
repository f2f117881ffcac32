// SPDX-License-Identifier: Apache-2.0
// Decides which sessions get a lease, which wait for one, and which leases must shrink on DEVICE
// for a new one. It changes the lease book alone, and calls handlers with its decisions and to ask
// what only its owner knows.
// Owner:  the server thread.
// Units:  bytes. Those of DEVICE are multiples of the grain.
// End:    a session that waits is answered once. It waits for bytes of the budget as long as enough
//         of them are being reclaimed. Beside that it waits at most twice, each time until
//         EndPatience: for the machine's memory that is being reclaimed, and then for leases that
//         were asked to shrink. While one waits, targets of leases only fall, and never below a
//         lease's floor. Leases grow only when none waits, and then from free bytes.
// Errors: none. Sums are compared by subtraction, because a peer's numbers may be any int64_t.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "gemini/tier.h"
#include "server/leases/budget_shares.h"
#include "server/leases/lease_book.h"

namespace gemini::server {

struct WaitingLease {
  uint64_t session = 0;
  uint64_t request = 0;         // For the handler that answers it.
  TierMap<int64_t> want = {};   // At least the floor.
  TierMap<int64_t> floor = {};  // At least 0.
  bool takes_epochs = false;
  bool has_patience = false;   // It waits until the machine has memory that is being reclaimed.
  bool waited = false;         // It did so for long enough.
  bool asked = false;          // Leases were asked to shrink for it. Its promise is reserved.
  bool patience_over = false;  // They had their time: it gets what is free, or is refused.
};

class Admission {
 public:
  // Are called inside Open and TryWaiting, and must not call Admission.
  struct Handlers {
    // The session no longer waits: its lease is in the book.
    std::function<void(const WaitingLease&)> admit;
    // The session no longer waits: its floor in `lacking` is not free, or was not vacated in time.
    std::function<void(const WaitingLease&, Tier lacking)> refuse;
    // This session waits until the machine has memory that is being reclaimed, or, from now on, for
    // leases that were asked to shrink: call EndPatience after the time that it waits.
    std::function<void(uint64_t session)> begin_patience = nullptr;
    // The book has a new target for this session's lease: post it.
    std::function<void(uint64_t session)> post_target = nullptr;
    // Returns whether the session's process is stopped, so that it cannot answer. Is called only
    // for sessions that take epochs.
    std::function<bool(uint64_t session)> is_stopped;
    // Returns how many bytes of DEVICE the machine has for the lease of a newcomer, or (no value)
    // for leases that grow. Below 0: more is promised than it has. A null handler stands for
    // whatever is free in the book.
    std::function<int64_t(std::optional<uint64_t> newcomer)> device_room = nullptr;
  };

  // The book must outlive this.
  Admission(LeaseBook& book, int64_t device_grain_bytes, Handlers handlers)
      : book_(book), device_grain_bytes_(device_grain_bytes), handlers_(std::move(handlers)) {}

  // Adds a session behind those that wait. Tries it at once, unless `later`, which says that those
  // before it have yet to be tried.
  void Open(WaitingLease newcomer, bool later);
  // Tries all sessions that wait, in the order of arrival. If none waits then, leases that want
  // more grow. Call it when bytes became free or are being reclaimed, when a session stopped
  // waiting, and when a lease was made or fenced.
  void TryWaiting();
  // Removes the session from those that wait. Returns whether it was one.
  bool Drop(uint64_t session);
  // Ends the time that the session waits for what begin_patience was called for. Returns whether it
  // waits.
  bool EndPatience(uint64_t session);
  // Removes and returns all sessions that wait.
  std::deque<WaitingLease> TakeWaiting() { return std::exchange(waiting_, {}); }

 private:
  // Where DEVICE for a new lease can come from.
  struct Supply {
    int64_t lacking_bytes = 0;  // So many fewer does the machine have than are free in the book.
    // Free in both, being reclaimed, or asked for and not yet vacated. Below 0: more is promised
    // than the machine has.
    int64_t coming_bytes = 0;
    int64_t asked_bytes = 0;          // Of them: asked for and not yet vacated.
    int64_t slack_bytes = 0;          // Above the floors of the leases that answer epochs.
    std::vector<BudgetShare> shares;  // Of these leases, without those that are still being made.
  };
  // How much of the supply a new lease may have.
  struct Promise {
    bool fits = false;         // Whether the supply covers the floors of all promises.
    int64_t fair_bytes = 0;    // What there is in equal parts for all jobs that have or want some.
    int64_t own_bytes = 0;     // At least its floor, at most its want.
    int64_t others_bytes = 0;  // Promised to other sessions for which leases were asked to shrink.
    int64_t others_floor_bytes = 0;
  };

  // Answers the session and returns true, or returns false if it waits for bytes that are being
  // reclaimed or that leases were asked for.
  bool TryLease(WaitingLease& waiting);
  std::deque<WaitingLease>::iterator FindWaiting(uint64_t session);
  // Returns whether the client can still be expected to answer an epoch.
  bool AnswersEpochs(uint64_t session, const LeaseTerms& terms) const;
  Supply FindSupply(const WaitingLease& waiting) const;
  Promise PromiseDevice(const WaitingLease& waiting, const Supply& supply) const;
  // Lowers targets of leases until the bytes that are coming cover what is promised.
  void AskToGiveWay(WaitingLease& waiting, const Promise& promise, const Supply& supply);
  void SetTarget(uint64_t session, int64_t device_bytes);
  void GrowBack();
  // How many fewer bytes, in whole grains, the machine has than are free in the book.
  int64_t LackingDevice(std::optional<uint64_t> newcomer) const;

  LeaseBook& book_;
  const int64_t device_grain_bytes_;
  const Handlers handlers_;
  std::deque<WaitingLease> waiting_;  // In the order of arrival.
};

}  // namespace gemini::server
