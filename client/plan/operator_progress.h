// SPDX-License-Identifier: Apache-2.0
// Tells the executor of a plan how far the operators are, which may run on several threads and
// inside one another.
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

  // Operators are numbered in the order of Begin.
  void Begin(int64_t op) {
    if (in_flight_.fetch_add(1, std::memory_order_acq_rel) == 0)
      executor_.Progressed(Gate::BeginOf(op));
  }
  void End(int64_t op) {
    int64_t last = last_ended_.load(std::memory_order_relaxed);
    while (last < op && !last_ended_.compare_exchange_weak(last, op, std::memory_order_acq_rel)) {
    }
    // One inside another, or beside it on another thread: only when all have ended is it certain
    // that those before have.
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
