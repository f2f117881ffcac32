// SPDX-License-Identifier: Apache-2.0
#include "client/device/stall_times.h"

#include <algorithm>
#include <optional>

namespace gemini::client {

OperatorPoint StallTimes::Add(SpaceCounters& space, StallCause cause, OperatorPoint begin) {
  const OperatorPoint end = clock_.Now();
  const bool over_at_once = end.event == nullptr;
  MutexLock lock(mutex_);
  const uint64_t number = num_added_.load(std::memory_order_relaxed) + 1;
  num_added_.store(number, std::memory_order_release);
  pending_.Add({std::move(begin), end}, {.number = number, .space = &space, .cause = cause});
  if (over_at_once || pending_.size() > kMostPending) SettleLocked(number);
  return end;
}

void StallTimes::Settle(uint64_t num_first) {
  // Operators that did not wait take no lock.
  if (num_settled_.load(std::memory_order_acquire) >= std::min(num_first, num_added())) return;
  MutexLock lock(mutex_);
  SettleLocked(num_first);
}

void StallTimes::SettleLocked(uint64_t num_first) {
  while (!pending_.empty() && pending_.front().number <= num_first) {
    const auto stall = pending_.Take(clock_);
    if (!stall) return;
    const int64_t stall_ns = stall->end_ns - stall->begin_ns;
    by_cause_ns_[static_cast<size_t>(stall->what.cause)].fetch_add(stall_ns,
                                                                   std::memory_order_relaxed);
    total_ns_.fetch_add(stall_ns, std::memory_order_relaxed);
    stall->what.space->AddStallNs(stall->what.cause, stall_ns);
    num_settled_.store(stall->what.number, std::memory_order_release);
  }
}

}  // namespace gemini::client
