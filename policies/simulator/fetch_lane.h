// SPDX-License-Identifier: Apache-2.0
// The link from HOST to DEVICE in a simulation: begins a plan's fetches as soon as their slots and
// their bytes are there, in one order or another.
// Units: nanoseconds since the first round's beginning; ranges, fetches and positions by index.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/host_clock.h"
#include "policies/simulator/playback_record.h"
#include "policies/simulator/simulated_slots.h"
#include "policies/simulator/simulated_time.h"
#include "policies/simulator/update_lane.h"
#include "policies/simulator/waiting_fetches.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Which of the fetches that may begin goes first: that of the plan's order, or the one needed first
// among those whose slots and bytes are there when the link is free; if there is none, the next
// that has both.
enum class FetchChoice { kInOrder, kNeededFirst };

// What the lanes of a playback share; all outlive them.
struct PlaybackParts {
  const RangeTrace& trace;
  const Plan& plan;
  const CostModel& costs;
  const SimulatedTime& time;
  HostClock& host;
  SimulatedSlots& slots;
  PlaybackRecord& record;
};

class FetchLane {
 public:
  static constexpr int64_t kWatchedRound = 1;  // The first that does not begin with all there.

  FetchLane(const PlaybackParts& parts, const UpdateLane& updates, FetchChoice choice);

  void BeginRound() { next_ = 0; }
  // Lets those fetches begin that may at `moment`: 2 p is when operator p asks, 2 p + 1 when it has
  // ended. The link has gone on with others until now.
  void Release(int64_t moment);
  // Begins what the link turns to until all that the operator uses has begun.
  void BeginAllFor(int32_t position);

  // Since when the range is on DEVICE, or when it will be.
  Moment ready(int32_t range) const { return ready_[range]; }
  // By fetch of the plan: when the one listed in round kWatchedRound began, in that round or the
  // next.
  const std::vector<int64_t>& begun_ns() const { return begun_ns_; }

 private:
  void BeginNext();
  Moment EarliestBegin(const PlannedFetch& fetch) const;
  void Begin(const WaitingFetch& waiting);

  const PlaybackParts parts_;
  const UpdateLane& updates_;
  const FetchChoice choice_;
  std::vector<int32_t> by_release_;  // Fetches, in the order in which they may begin.
  size_t next_ = 0;                  // Of by_release_.
  WaitingFetches waiting_;
  int64_t free_ns_ = 0;            // When the link is.
  std::vector<Moment> ready_;      // By range.
  std::vector<int64_t> begun_ns_;  // By fetch.
};

// How many bytes the range's chunks have together; and how long their copies take, one by one, at
// that rate, if `size_bytes` of them are copied.
int64_t PayloadBytes(const RangeTrace& trace, int32_t range);
int64_t CopiesNs(const RangeTrace& trace, const CostModel& costs, int32_t range, int64_t size_bytes,
                 double bytes_per_second);

}  // namespace gemini::policies
