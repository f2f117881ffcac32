// SPDX-License-Identifier: Apache-2.0
// Plays a plan round after round, as the model in policies/simulator/simulator.h states it, on a
// lane each for operators, fetches, evictions and updates in HOST.
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

// What a playback notes beside its sums.
enum class PlaybackNotes {
  kNone,
  kHostUses,           // When it uses chunks in HOST.
  kHostUsesAndEvents,  // And each event of the round.
};

class Playback {
 public:
  // `plan` is a valid plan of `trace`, which already keeps the plan's gradients on DEVICE. All
  // references outlive this.
  Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs, FetchChoice choice,
           PlaybackNotes notes);
  Playback(const Playback&) = delete;
  Playback& operator=(const Playback&) = delete;

  // Sets when HOST is ready for each event, from the next round on. `times` outlives this. Only for
  // FetchChoice::kInOrder.
  void set_host_times(const HostTimes* times) { host_.set_times(times); }

  // Plays a round and returns how long it took.
  int64_t PlayRound();

  // Plays until a round takes as long as the one before, at most 6 rounds. Returns the last one,
  // without device_floor_bytes.
  Simulation PlayToSteadyState();

  int64_t now_ns() const { return time_.now_ns; }
  // Returns what the last round did in HOST, or nothing if made without events.
  const std::vector<HostAccess>& host_accesses() const { return host_.accesses(); }
  // As FetchLane::begun_ns.
  const std::vector<int64_t>& begun_ns() const { return fetches_.begun_ns(); }

 private:
  bool IsUpdate(int32_t position) const {
    return plan_.ends_with_update() && position == trace_.num_positions() - 1;
  }
  // Returns how long the operator computes, for the update with its work on DEVICE.
  int64_t ComputeNs(int32_t position) const {
    return trace_.operators[position].compute_ns + (IsUpdate(position) ? last_operator_ns_ : 0);
  }
  // Advances the time to when all that the operator needs is on DEVICE, and records the stall.
  void Begin(int32_t position);
  // Begins the copies of gradients and the evictions that are due when the operator has ended.
  void LeaveAfter(int32_t position);
  // Copies a range to HOST, after the copies that were begun before.
  void CopyOut(HostEvent event, size_t index, int32_t range, int64_t size_bytes);
  // Drops the versions in HOST and NVME that an update on DEVICE has replaced.
  void GiveUpInHost();
  // Vacates the stale parameters and plays the updates in HOST, both from `begin_ns` on. The
  // write-backs of late gradients have been queued before.
  void UpdateInHost(int64_t begin_ns);
  // Records when the copy of a gradient ends. If kMaxGradientsUnderWay others are in flight, the
  // next operator waits for the oldest.
  void QueueGradient(Moment end);

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  const int64_t trust_ratio_ns_;    // Trust ratios, which precede all updates.
  const int64_t last_operator_ns_;  // Trust ratios, and the updates on DEVICE.

  SimulatedTime time_;
  HostClock host_;
  SimulatedSlots slots_;
  PlaybackRecord record_;
  UpdateLane updates_;
  FetchLane fetches_;
  Moment evict_free_;                           // When the link from DEVICE is idle.
  int64_t back_ns_ = 0;                         // The end of the last write-back.
  std::vector<int64_t> written_ns_;             // By range: the end of its last write-back.
  const std::vector<bool> behind_write_backs_;  // By eviction.
  // Ends of the last copies of gradients, as a ring.
  std::array<Moment, kMaxGradientsUnderWay> gradient_ends_ = {};
  int64_t gradients_ = 0;  // Copies of gradients in all rounds.
  Moment gradients_free_;  // When few enough gradients are in flight for the next operator.
  size_t next_eviction_ = 0, next_out_ = 0;
};

}  // namespace gemini::policies
