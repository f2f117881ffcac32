// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_clock.h"

#include <algorithm>

namespace gemini::policies {
namespace {

// 36 years. HOST may be many rounds behind, and the rounds that it delays are longer than those by
// which that was counted; nothing is predicted to begin later than this.
constexpr int64_t kHorizonNs = int64_t{1} << 60;

// Returns `begin_ns` + `rounds` * `round_ns`, or kHorizonNs if that is later.
int64_t After(int64_t begin_ns, int64_t rounds, int64_t round_ns) {
  if (begin_ns >= kHorizonNs || rounds > (kHorizonNs - begin_ns) / std::max<int64_t>(round_ns, 1)) {
    return kHorizonNs;
  }
  return begin_ns + rounds * round_ns;
}

}  // namespace

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
  const int64_t begin_ns = ready.rounds_after == 0 ? begin_ns_
                                                   : After(NextBeginNs(RoundEndNs()),
                                                           ready.rounds_after - 1, time_.round_ns);
  return {.first_ns = begin_ns + ready.first_ns, .last_ns = begin_ns + ready.last_ns};
}

}  // namespace gemini::policies
