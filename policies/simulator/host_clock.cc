// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_clock.h"

#include <algorithm>

namespace gemini::policies {
int64_t HostClock::NextBeginNs(int64_t round_end_ns) const {
  if (times_ == nullptr) return round_end_ns;
  return std::max(round_end_ns, begin_ns_ + times_->least_round_ns);
}

// Known when the last operator, which is what most that comes later waits for, has begun.
int64_t HostClock::RoundEndNs() const {
  const int32_t last = trace_.num_positions() - 1;
  if (time_.position < last) return time_.round_begin_ns + time_.round_ns;
  return time_.now_ns + (plan_.ends_with_update() ? trace_.operators[last].compute_ns : 0);
}

void HostClock::BeginRound() {
  if (time_.rounds > 0) begin_ns_ = NextBeginNs(time_.now_ns);
  accesses_.clear();
}

HostReady HostClock::Ask(HostEvent event, int32_t index, int64_t asked_ns, int64_t chunk_ns) {
  if (keeps_accesses_) {
    accesses_.push_back({event, index, std::max<int64_t>(asked_ns - begin_ns_, 0), chunk_ns});
  }
  if (times_ == nullptr) return {};
  const HostReady ready = times_->of(event, index);
  const int64_t begin_ns =
      ready.rounds_after == 0
          ? begin_ns_
          : AfterRounds(NextBeginNs(RoundEndNs()), ready.rounds_after - 1, time_.round_ns);
  return {.first_ns = begin_ns + ready.first_ns, .last_ns = begin_ns + ready.last_ns};
}

}  // namespace gemini::policies
