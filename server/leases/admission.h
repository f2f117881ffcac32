// SPDX-License-Identifier: Apache-2.0
// Who gets a lease, who waits for one, and who gives way on DEVICE for a newcomer. It decides by
// the lease book alone, and tells its owner what follows.
// Owner:  the server thread.
// Units:  bytes, of DEVICE multiples of the grain.
// End:    waiting ends, whatever clients do. Others are asked only for a newcomer that waits. While
//         one waits, targets only fall, and none below its floor. A newcomer is answered once: at
//         the latest at the TryWaiting after EndPatience. When nobody waits, what is free goes to
//         those who want more, and nobody is asked for it.
// Errors: none. Sums are compared by subtraction, for a peer's numbers may be as large as their
//         type.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "gemini/tier.h"
#include "server/leases/budget_shares.h"
#include "server/leases/lease_book.h"

namespace gemini::server {

struct WaitingLease {
  uint64_t session = 0;
  uint64_t request = 0;         // Kept for who answers it.
  TierMap<int64_t> want = {};   // At least the floor.
  TierMap<int64_t> floor = {};  // At least 0.
  bool takes_epochs = false;
  bool asked = false;          // Others were asked to give way for it; its promise is kept.
  bool patience_over = false;  // It takes what is free, or is refused.
};

class Admission {
 public:
  // Called inside Open and TryWaiting. They call nothing of admission's.
  struct Handlers {
    // The newcomer waits no more: its lease is in the book.
    std::function<void(const WaitingLease&)> admit;
    // The newcomer waits no more: its floor of `lacking` is not there, or was not vacated in time.
    std::function<void(const WaitingLease&, Tier lacking)> refuse;
    // Others were asked to give way for this session: EndPatience is due after some time.
    std::function<void(uint64_t session)> begin_patience = nullptr;
    // The target of this session in the book has changed, and is to be posted.
    std::function<void(uint64_t session)> post_target = nullptr;
    // Whether the session's process is stopped and cannot answer. Asked of those who take epochs.
    std::function<bool(uint64_t session)> is_stopped;
  };

  // The book must outlive this.
  Admission(LeaseBook& book, int64_t device_grain_bytes, Handlers handlers)
      : book_(book), device_grain_bytes_(device_grain_bytes), handlers_(std::move(handlers)) {}

  // Puts a newcomer behind those who wait. Tries it at once, unless `later`: those before it are
  // still to be tried.
  void Open(WaitingLease newcomer, bool later);
  // Tries all who wait, in the order of their arrival; then those who have leases may grow. To be
  // called when bytes came free or on their way back, when somebody waits no more, and when a lease
  // was made or fenced.
  void TryWaiting();
  // The session waits no more. Returns whether it waited.
  bool Drop(uint64_t session);
  // Others had time enough to give way for it. Returns whether it waits.
  bool EndPatience(uint64_t session);
  // Returns those who wait; nobody waits any more.
  std::deque<WaitingLease> TakeWaiting() { return std::exchange(waiting_, {}); }

 private:
  // Where DEVICE for newcomers can come from.
  struct Supply {
    int64_t coming_bytes = 0;         // Free, on its way back, or asked for and not yet vacated.
    int64_t slack_bytes = 0;          // Above the floors of those who answer.
    std::vector<BudgetShare> shares;  // Theirs, less those whose lease is still being made.
  };
  // What a newcomer is to have of it.
  struct Promise {
    bool fits = false;         // Otherwise not even the floors of all who were promised some do.
    int64_t fair_bytes = 0;    // An equal part for each job that has or wants some.
    int64_t own_bytes = 0;     // At least its floor, at most its want.
    int64_t others_bytes = 0;  // Promised to others for whom somebody was asked.
    int64_t others_floor_bytes = 0;
  };

  // Returns whether the newcomer was answered. Otherwise it waits for bytes that are on their way
  // back, or that others were asked for.
  bool TryLease(WaitingLease& waiting);
  std::deque<WaitingLease>::iterator FindWaiting(uint64_t session);
  // Whether what its client does with an epoch can still be waited for.
  bool AnswersEpochs(uint64_t session, const LeaseTerms& terms) const;
  Supply FindSupply() const;
  Promise PromiseDevice(const WaitingLease& waiting, const Supply& supply) const;
  // Posts smaller targets, so that what is promised will be there.
  void AskToGiveWay(WaitingLease& waiting, const Promise& promise, const Supply& supply);
  void SetTarget(uint64_t session, int64_t device_bytes);
  void GrowBack();

  LeaseBook& book_;
  const int64_t device_grain_bytes_;
  const Handlers handlers_;
  std::deque<WaitingLease> waiting_;  // In the order of arrival.
};

}  // namespace gemini::server
