// SPDX-License-Identifier: Apache-2.0
// Follows the server's changes of a session's DEVICE budget: between operators it gives way, then says so.
// Thread: any; one at a time does the work.
// Cost:   two relaxed loads while nothing changes.
// Errors: none. What cannot give way yet is tried again; a server that is gone is noticed elsewhere.
#pragma once
#include <atomic>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "client/session.h"
#include "gemini/mutex.h"

namespace gemini::client {

class BudgetFollower {
 public:
  // `session` outlives this.
  explicit BudgetFollower(Session& session) : session_(session) {}
  BudgetFollower(const BudgetFollower&) = delete;
  BudgetFollower& operator=(const BudgetFollower&) = delete;

  // No operator runs. Not after the session's Close.
  void BetweenOperators() {
    const std::optional<BudgetTarget> target = session_.TakeBudgetChange();
    if (!target && !is_pending_.load(std::memory_order_relaxed)) [[likely]]
      return;
    Follow(target);
  }

 private:
  void Follow(const std::optional<BudgetTarget>& target);

  Session& session_;
  std::atomic<bool> is_pending_{false};
  Mutex mutex_;
  std::optional<BudgetTarget> pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_due_ ABSL_GUARDED_BY(mutex_) = false;  // Whether the server may wait for the answer.
};

}  // namespace gemini::client
