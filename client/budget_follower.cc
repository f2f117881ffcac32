// SPDX-License-Identifier: Apache-2.0
#include "client/budget_follower.h"

namespace gemini::client {

void BudgetFollower::Follow(const std::optional<BudgetTarget>& target) {
  MutexLock lock(mutex_);
  if (target) {
    // Several may come before one is acknowledged: the last counts, and may be less than what was granted.
    shrinks_ |= target->device_bytes < session_.device_budget().budget_bytes();
    pending_ = target;
    is_pending_.store(true, std::memory_order_relaxed);
  }
  if (!pending_ || !session_.residency().SetBudget(pending_->device_bytes).ok()) return;
  // Another target may have been posted meanwhile: it is taken between the next operators.
  if (shrinks_ && absl::IsAborted(session_.AcknowledgeBudget(*pending_))) return;
  pending_.reset();
  shrinks_ = false;
  is_pending_.store(false, std::memory_order_relaxed);
}

}  // namespace gemini::client
