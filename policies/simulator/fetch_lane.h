// SPDX-License-Identifier: Apache-2.0
// Simulates the link from HOST to DEVICE, which carries out the fetches of a plan one after
// another. A fetch begins when its slots are vacated, DEVICE has room, its bytes are ready and the
// link is idle. Whether there is room is found out when it may begin, with the non-model data of
// that moment; those that still wait for the link have none of it.
// Units: nanoseconds since the first round's beginning; ranges, fetches and positions by index.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan/gate.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/host_clock.h"
#include "policies/simulator/playback_record.h"
#include "policies/simulator/simulated_slots.h"
#include "policies/simulator/simulated_time.h"
#include "policies/simulator/update_lane.h"
#include "policies/simulator/waiting_fetches.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Which fetch the link begins next. kInOrder: the next one of the plan. kNeededFirst: of those
// whose slots and bytes are ready when the link is idle, the one that an operator needs first; if
// none is ready, the first that becomes ready.
enum class FetchChoice { kInOrder, kNeededFirst };

// What the parts of a playback share; everything referred to outlives them.
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
  // The round that begun_ns() describes. Round 0 differs from those that follow, because it begins
  // with all ranges of Plan::initial on DEVICE.
  static constexpr int64_t kWatchedRound = 1;

  FetchLane(const PlaybackParts& parts, const UpdateLane& updates, FetchChoice choice);

  void BeginRound() { next_ = 0; }
  // Queues the fetches that may begin at `moment` of the round. Before that it begins the queued
  // ones that the link has reached by now.
  void Release(Gate moment);
  // Begins queued fetches, in the link's order, until all ranges of the operator have begun.
  void BeginAllFor(int32_t position);

  // Returns when the range's last fetch ends, which may be in the past.
  Moment ready(int32_t range) const { return ready_[range]; }
  // Returns, by fetch of the plan, when the one that round kWatchedRound lists began: in that round
  // or in the next.
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

// Returns how many slots the operator's non-model data leaves of the plan's budget.
int64_t SlotsBeside(const RangeTrace& trace, const Plan& plan, int32_t position);
// Returns how many bytes of the range's chunks tensors may fill.
int64_t PayloadBytes(const RangeTrace& trace, int32_t range);
// Returns how long it takes to copy `size_bytes` of the range at that rate, chunk by chunk with the
// latency of each.
int64_t CopiesNs(const RangeTrace& trace, const CostModel& costs, int32_t range, int64_t size_bytes,
                 double bytes_per_second);

}  // namespace gemini::policies
