// SPDX-License-Identifier: Apache-2.0
#include "client/plan/interval_meter.h"

#include <algorithm>

namespace gemini::client {

void IntervalMeter::Begin(int32_t position) {
  current_.num_stalls = stalls_.num_added();
  const int64_t next = current_.number + 1;
  ended_.Add({.begin = {}, .end = clock_.Now()}, std::move(current_));
  current_ = {.number = next, .position = position, .device_bytes = budget_.used_bytes()};
}

std::optional<IntervalMeter::Interval> IntervalMeter::Take() {
  const auto ended = ended_.Take(clock_);
  if (!ended) return std::nullopt;
  stalls_.Settle(ended->what.num_stalls);
  const int64_t total_ns = stalls_.total_ns();
  const int64_t begin_ns = std::exchange(last_end_ns_, ended->end_ns);
  const int64_t interval_ns = std::max<int64_t>(0, ended->end_ns - begin_ns);
  // Several threads may have waited at the same time.
  const int64_t stall_ns =
      std::min(interval_ns, total_ns - std::exchange(taken_stall_ns_, total_ns));
  Show(ended->what, ended->end_ns - interval_ns, ended->end_ns, stall_ns);
  int64_t compute_ns = interval_ns - stall_ns;
  for (const OperatorSpan& span : ended->what.left_out) {
    const std::optional<int64_t> left_from_ns = clock_.TimeOf(span.begin);
    const std::optional<int64_t> left_to_ns = clock_.TimeOf(span.end);
    if (left_from_ns && left_to_ns) compute_ns -= std::max<int64_t>(0, *left_to_ns - *left_from_ns);
  }
  return Interval{.number = ended->what.number, .compute_ns = std::max<int64_t>(0, compute_ns)};
}

void IntervalMeter::Show(const Shown& interval, int64_t begin_ns, int64_t end_ns,
                         int64_t stall_ns) {
  TimelineEvent event = {.lane = TimelineLane::kOperator,
                         .subject = static_cast<uint32_t>(interval.position),
                         .begin_ns = begin_ns + stall_ns,
                         .end_ns = end_ns,
                         .stall_ns = stall_ns,
                         .size_bytes = interval.device_bytes};
  if (stall_ns > 0) [[unlikely]] {
    int64_t longest_ns = 0;
    for (int cause = 0; cause < kNumStallCauses; ++cause) {
      const int64_t total_ns = stalls_.of(static_cast<StallCause>(cause));
      const int64_t waited_ns = total_ns - std::exchange(taken_stalls_ns_[cause], total_ns);
      if (waited_ns <= longest_ns) continue;
      longest_ns = waited_ns;
      event.cause = static_cast<StallCause>(cause);
    }
  }
  if (timeline_ != nullptr && interval.position >= 0) WriteTimelineEvent(*timeline_, event);
}

}  // namespace gemini::client
