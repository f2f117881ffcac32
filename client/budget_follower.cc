// SPDX-License-Identifier: Apache-2.0
#include "client/budget_follower.h"

namespace gemini::client {

void BudgetFollower::Follow(const std::optional<BudgetTarget>& target) {
  MutexLock lock(mutex_);
  if (target) {
    // Several may come before one is acknowledged: the last counts. It may be less than a grant that was
    // never seen here, even where it is more than what is used now, and then a newcomer waits for it.
    is_due_ |= target->device_bytes < session_.device_budget().budget_bytes() ||
               (pending_ && target->device_bytes < pending_->device_bytes) ||
               target->epoch != last_epoch_ + 1;
    last_epoch_ = target->epoch;
    pending_ = target;
    is_pending_.store(true, std::memory_order_relaxed);
  }
  if (!pending_) return;
  const int64_t usable_bytes = session_.MapBudget(*pending_);
  const bool lacks_slabs = usable_bytes < pending_->device_bytes;
  // A budget that is set ends the plan: not for slabs that are asked for once more, in vain.
  if (!lacks_slabs || usable_bytes != session_.device_budget().budget_bytes()) {
    if (!session_.residency().SetBudget(usable_bytes).ok()) return;
  }
  // Another target may have been posted meanwhile: it is taken between the next operators.
  if (is_due_ && absl::IsAborted(session_.AcknowledgeBudget(*pending_))) return;
  if (lacks_slabs && !is_due_) return;
  pending_.reset();
  is_due_ = false;
  is_pending_.store(false, std::memory_order_relaxed);
}

}  // namespace gemini::client
