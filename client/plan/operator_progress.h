// SPDX-License-Identifier: Apache-2.0
// Reports to the executor of a plan which operators have begun and ended. They may run on several
// threads and inside one another.
// Thread: any; no lock.
#pragma once
#include <atomic>
#include <cstdint>

#include "client/plan/plan_executor.h"
#include "gemini/plan/gate.h"

namespace gemini::client {

class OperatorProgress {
 public:
  // `executor` outlives this.
  explicit OperatorProgress(PlanExecutor& executor) : executor_(executor) {}

  bool any_in_flight() const { return in_flight_.load(std::memory_order_acquire) > 0; }

  // Call them at the begin and the end of operator `op`. Operators are numbered in the order of
  // Begin.
  void Begin(int64_t op) {
    if (in_flight_.fetch_add(1, std::memory_order_acq_rel) == 0)
      executor_.Progressed(Gate::BeginOf(op));
  }
  void End(int64_t op) {
    int64_t last = last_ended_.load(std::memory_order_relaxed);
    while (last < op && !last_ended_.compare_exchange_weak(last, op, std::memory_order_acq_rel)) {
    }
    // An operator may run inside another, or beside it on another thread. So only when none is in
    // flight is it certain that all before the last one have ended.
    if (in_flight_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      executor_.Progressed(Gate::EndOf(last_ended_.load(std::memory_order_acquire)));
    }
  }

 private:
  PlanExecutor& executor_;
  std::atomic<int64_t> last_ended_{-1};
  std::atomic<int64_t> in_flight_{0};
};

}  // namespace gemini::client
