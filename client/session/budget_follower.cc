// SPDX-License-Identifier: Apache-2.0
#include "client/session/budget_follower.h"

namespace gemini::client {

BudgetFollower::BudgetFollower(Session& session)
    : session_(session),
      target_({.epoch = 0, .device_bytes = session.granted_bytes()[Tier::kDevice]}) {
  // A GPU may not have had all of its slabs.
  is_pending_ =
      session.device_budget().budget_bytes() < session.device().ForChunks(target_.device_bytes);
}

void BudgetFollower::SetApart(int64_t bytes) {
  MutexLock lock(mutex_);
  session_.device().SetApart(bytes);
  next_try_ = {};
  is_pending_.store(true, std::memory_order_relaxed);
}

bool BudgetFollower::KeepsApart() const {
  MutexLock lock(mutex_);
  return session_.device().mapped_slab_bytes() <= session_.device().ForChunks(target_.device_bytes);
}

void BudgetFollower::Follow(const std::optional<BudgetTarget>& target) {
  MutexLock lock(mutex_);
  // Another thread may have come here with a later one.
  if (target && target->epoch > target_.epoch) {
    // Several may come before one is acknowledged: the last counts. It may be less than a grant
    // that was never seen here, even where it is more than what is used now, and then a newcomer
    // waits for it.
    is_due_ |= target->device_bytes < target_.device_bytes || target->epoch != target_.epoch + 1;
    target_ = *target;
    next_try_ = {};
    is_pending_.store(true, std::memory_order_relaxed);
  }
  if (!is_pending_.load(std::memory_order_relaxed) || Clock::now() < next_try_) return;
  const int64_t usable_bytes = session_.device().Map(target_);
  // A budget that is set ends the plan: not for slabs that are asked for once more, in vain.
  if (is_unset_ || usable_bytes != session_.device_budget().budget_bytes()) {
    is_unset_ = true;
    if (!session_.residency().SetBudget(usable_bytes).ok()) return;
    is_unset_ = false;
  }
  const absl::Status vacated =
      is_due_ ? session_.device().Acknowledge(target_) : session_.device().Cut(target_);
  // Another target was posted meanwhile: it is taken between the next operators.
  if (is_due_ && absl::IsAborted(vacated)) return;
  // A server that awaits nothing says so.
  const bool is_vacated = vacated.ok() || (is_due_ && absl::IsFailedPrecondition(vacated));
  if (is_vacated) is_due_ = false;
  if (!is_vacated || usable_bytes < session_.device().ForChunks(target_.device_bytes)) {
    next_try_ = Clock::now() + kRetryAfter;
    return;
  }
  is_pending_.store(false, std::memory_order_relaxed);
}

}  // namespace gemini::client
