// SPDX-License-Identifier: Apache-2.0
// Follows the server's changes of a session's DEVICE budget: between operators it frees memory and
// then acknowledges the change. It also checks whether the server is still there.
// Thread: any; one at a time does the work.
// Cost: while nothing changes, three relaxed loads and a read of the clock, and a poll once in
// kLookAfter.
// Errors: none. What cannot be freed yet is tried again. A server that is gone is latched in the
// session.
#pragma once
#include <atomic>
#include <chrono>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "client/session/session.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class BudgetFollower {
 public:
  // One for each session, which outlives this.
  explicit BudgetFollower(Session& session);
  BudgetFollower(const BudgetFollower&) = delete;
  BudgetFollower& operator=(const BudgetFollower&) = delete;

  // Sets how many bytes of a DEVICE in slabs are apart, which means not for chunks, from the next
  // BetweenOperators on. Slabs are given back or made to fit. What the GPU or the server refused is
  // tried again, kRetryAfter later at the earliest. Any thread.
  void SetApart(int64_t bytes);
  static constexpr std::chrono::seconds kRetryAfter{2};
  static constexpr std::chrono::seconds kLookAfter{1};
  // Returns whether the slabs that are mapped leave room for all that is apart. Any thread.
  bool KeepsApart() const;

  // Returns the target that is followed: chunks and what is apart.
  int64_t device_bytes() const {
    MutexLock lock(mutex_);
    return target_.device_bytes;
  }

  // Call it while no operator runs, and not after the session's Close.
  void BetweenOperators() {
    LookForServer();
    const std::optional<BudgetTarget> target = session_.device().TakeChange();
    if (!target && !is_pending_.load(std::memory_order_relaxed)) [[likely]]
      return;
    Follow(target);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void Follow(const std::optional<BudgetTarget>& target);
  void LookForServer() {
    const Clock::time_point now = Clock::now();
    if (now < next_look_.load(std::memory_order_relaxed)) [[likely]]
      return;
    next_look_.store(now + kLookAfter, std::memory_order_relaxed);
    session_.CheckServer().IgnoreError();  // Latched.
  }

  Session& session_;
  std::atomic<Clock::time_point> next_look_{Clock::time_point()};
  std::atomic<bool> is_pending_{false};
  mutable Mutex mutex_;
  BudgetTarget target_ ABSL_GUARDED_BY(mutex_);    // The last one.
  bool is_unset_ ABSL_GUARDED_BY(mutex_) = false;  // The budget could not be set in full.
  Clock::time_point next_try_ ABSL_GUARDED_BY(mutex_);
  bool is_due_ ABSL_GUARDED_BY(mutex_) = false;  // The server may be waiting for the answer.
};

}  // namespace gemini::client
