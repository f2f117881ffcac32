// SPDX-License-Identifier: Apache-2.0
// The state of a simulation (policies/simulator/simulator.h states the model): plays a plan round
// after round, on a lane each for operators, fetches, evictions and updates in HOST.
// Units: nanoseconds since the first round's beginning; ranges and positions by index.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/fetch_lane.h"
#include "policies/simulator/host_clock.h"
#include "policies/simulator/playback_record.h"
#include "policies/simulator/simulated_slots.h"
#include "policies/simulator/simulated_time.h"
#include "policies/simulator/simulator.h"
#include "policies/simulator/update_lane.h"
#include "policies/trace/host_access.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

class Playback {
 public:
  // `plan` is a valid plan of `trace`, which keeps its gradients on DEVICE. All outlive this.
  Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs, FetchChoice choice,
           bool with_events);
  Playback(const Playback&) = delete;
  Playback& operator=(const Playback&) = delete;

  // What HOST is ready for when, from the next round on; outlives this. Needs kInOrder.
  void set_host_times(const HostTimes* times) { host_.set_times(times); }

  // Plays a round; returns how long it took.
  int64_t PlayRound();

  // Plays until a round takes as long as the one before, or a few; returns what the last one did,
  // but for device_floor_bytes.
  Simulation PlayToSteadyState();

  int64_t now_ns() const { return time_.now_ns; }
  // What the last round did in HOST, if asked for events.
  const std::vector<HostAccess>& host_accesses() const { return host_.accesses(); }
  const std::vector<int64_t>& begun_ns() const { return fetches_.begun_ns(); }

 private:
  bool IsUpdate(int32_t position) const {
    return plan_.ends_with_update() && position == trace_.num_positions() - 1;
  }
  // The operator's, with what it computes on DEVICE for the update.
  int64_t ComputeNs(int32_t position) const {
    return trace_.operators[position].compute_ns + (IsUpdate(position) ? last_operator_ns_ : 0);
  }
  // Waits until the operator has what it needs; that is now, then.
  void Begin(int32_t position);
  void LeaveAfter(int32_t position);
  void CopyOut(HostEvent event, size_t index, int32_t range, int64_t size_bytes);
  // What was updated on DEVICE has its old versions in HOST no longer.
  void GiveUpInHost();
  // The update's interval began then, and what leaves after it is on its way.
  void UpdateInHost(int64_t begin_ns);
  // A gradient's copy out ends then: the next operator waits for the one that it is one too many
  // beside.
  void QueueGradient(Moment end);

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  const int64_t trust_ratio_ns_;    // Before updates.
  const int64_t last_operator_ns_;  // With them and what is updated on DEVICE.

  SimulatedTime time_;
  HostClock host_;
  SimulatedSlots slots_;
  PlaybackRecord record_;
  UpdateLane updates_;
  FetchLane fetches_;
  Moment evict_free_;                // When the link from DEVICE is.
  std::vector<int64_t> written_ns_;  // By range: its last write-back's end.
  std::array<Moment, kMaxGradientsUnderWay> gradient_ends_ = {};  // The last ones, in turn.
  int64_t gradients_ = 0;                                         // Ever.
  Moment gradients_free_;                                         // When few enough are under way.
  size_t next_eviction_ = 0, next_out_ = 0;
};

}  // namespace gemini::policies
