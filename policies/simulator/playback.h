// SPDX-License-Identifier: Apache-2.0
// The state of a simulation, which plays a plan round after round (policies/simulator/simulator.h
// states the model).
// Units: nanoseconds since the first round's beginning; slots; ranges and positions by index.
#pragma once
#include <array>
#include <cstdint>
#include <queue>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/host_access.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Which of the fetches that may begin goes first: the next one in the plan's order, or the one
// needed first among those whose slots and bytes are there when the link is free. If there is none
// of these, it is the next that has both.
enum class FetchChoice { kInOrder, kNeededFirst };

class Playback {
 public:
  // `plan` is a valid plan of `trace`, and `trace` keeps the plan's gradients on DEVICE. All
  // arguments outlive this.
  Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs, FetchChoice choice,
           bool with_events);

  // Sets when HOST is ready, from the next round on; `times` outlives this. Needs kInOrder.
  void set_host_times(const HostTimes* times) { host_times_ = times; }

  // Plays a round and returns how long it took.
  int64_t PlayRound();

  // Plays until a round takes as long as one of the few before it; returns the result of the last
  // one, except for device_floor_bytes.
  Simulation PlayToSteadyState();

  int64_t now_ns() const { return now_ns_; }
  // Returns what the last round did in HOST, if events were asked for.
  const std::vector<HostAccess>& host_accesses() const { return host_accesses_; }
  // Returns, by fetch of the plan, when the one listed in round kWatchedRound began, in that round
  // or the next.
  // The first that does not begin with all ranges there.
  static constexpr int64_t kWatchedRound = 1;
  const std::vector<int64_t>& begun_ns() const { return begun_ns_; }

 private:
  struct Vacated {
    int64_t ns = 0;
    int32_t position = -1;  // In whose interval of the current round.
  };
  // When something is there, and what it waited for.
  struct Moment {
    int64_t ns = 0;
    StallCause cause = StallCause::kTransfer;
  };
  // Commits of a range's bundles, evenly one after the other; 0 is before all rounds.
  struct Commits {
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    StallCause cause = StallCause::kUpdate;  // kTransfer: they waited for a late gradient.
  };
  // A fetch that may begin.
  struct Waiting {
    Moment earliest;        // When its slots and its bytes are there.
    int64_t needed_at = 0;  // Counted from the first round.
    int32_t fetch = 0;
  };
  struct NeededLater {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.needed_at != b.needed_at ? a.needed_at > b.needed_at : a.fetch > b.fetch;
    }
  };
  struct ThereLater {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.earliest.ns != b.earliest.ns ? a.earliest.ns > b.earliest.ns : NeededLater()(a, b);
    }
  };
  template <typename Later>
  using Queue = std::priority_queue<Waiting, std::vector<Waiting>, Later>;
  static constexpr int32_t kNobody = -1;

  int64_t BytesOf(int32_t range) const {
    const PlannedRange& chunks = trace_.ranges[range];
    return chunks.num_bundles * trace_.PayloadOf(chunks);
  }
  // Returns the operator's time, with what it computes on DEVICE for the update.
  int64_t ComputeNs(int32_t position) const {
    return trace_.operators[position].compute_ns + (IsUpdate(position) ? last_operator_ns_ : 0);
  }
  // Returns how long the copies of the range's chunks take, `bytes` together.
  int64_t CopiesNs(int32_t range, int64_t bytes, double bytes_per_second) const;
  // Moment 2 p is when operator p asks, 2 p + 1 when it has ended.
  void ReleaseFetches(int64_t moment);
  // Begins the fetches that the link starts before now_ns_.
  void BeginUntilNow();
  // Begins fetches in the link's order until all that the operator uses has begun.
  void BeginAllFor(int32_t position);
  // Returns when the link begins its next fetch; there is one.
  int64_t NextBeginNs() const;
  void BeginNext();
  Moment EarliestBegin(const PlannedFetch& fetch) const;
  void BeginFetch(const Waiting& waiting);
  bool IsUpdate(int32_t position) const {
    return plan_.ends_with_update() && position == trace_.num_positions() - 1;
  }
  // Waits until the operator has what it needs, and sets now_ns_ to that time.
  void Begin(int32_t position);
  void LeaveAfter(int32_t position);
  void Vacate(int32_t range, int64_t ns, int32_t position);
  // Drops from HOST the old versions of what was updated on DEVICE.
  void GiveUpInHost();
  // Starts the updates in HOST. The update's interval began at `begin_ns`, and what leaves after it
  // is in flight.
  void UpdateInHost(int64_t begin_ns);
  void UpdateRange(int32_t range, StallCause cause);
  // Moves the optimizer states of a range that is updated from `begin_ns` on through HOST, all at
  // once, if NVME is their home.
  void MoveStates(const PlannedRange& updated, int64_t begin_ns);
  // Adds a gradient's copy out, which ends at `end`. If there are then too many in flight, the next
  // operator waits for the oldest.
  void QueueGradient(Moment end);
  // Records an event in HOST and returns when HOST is ready for it: when its first and its last
  // chunk may begin.
  HostReady AskHost(HostEvent event, int32_t index, int64_t asked_ns, int64_t chunk_ns);
  int64_t NextHostBeginNs(int64_t round_end_ns) const;
  int64_t RoundEndNs() const;
  void Record(const SimulatedEvent& event);
  Simulation TakeResult(int64_t round_ns);

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  const FetchChoice choice_;
  const bool with_events_;
  const int64_t trust_ratio_ns_;    // Spent before updates.
  const int64_t last_operator_ns_;  // With trust ratios and updates on DEVICE.

  const HostTimes* host_times_ = nullptr;
  std::vector<HostAccess> host_accesses_;

  int64_t now_ns_ = 0;  // The last interval's end.
  int64_t round_begin_ns_ = 0;
  int64_t round_ns_ = 0;       // Length of the last complete round.
  int64_t host_begin_ns_ = 0;  // Beginning of the round in HOST, which NVME may delay.
  int64_t fetch_free_ns_ = 0;  // When each lane is free.
  Moment evict_free_;
  Moment update_free_ = {.cause = StallCause::kUpdate};
  std::vector<Moment> ready_;        // By range: on DEVICE since.
  std::vector<int64_t> left_ns_;     // By range: its last eviction's end.
  std::vector<int64_t> written_ns_;  // By range: its last write-back's end.
  std::vector<Commits> commits_;     // By param range: of its last update.
  std::vector<int64_t> slot_of_;     // By range; kNobody if not on DEVICE.
  std::vector<bool> is_late_;        // By param range: its gradients are.
  std::vector<Vacated> vacated_;     // By slot.
  std::array<Moment, kMaxGradientsUnderWay> gradient_ends_ = {};  // The last ones, in turn.
  int64_t gradients_ = 0;                                         // Ever.
  Moment gradients_free_;                                         // When few enough are in flight.
  std::vector<int64_t> begun_ns_;                                 // By fetch.
  std::vector<int32_t> by_release_;  // Fetches, in the order in which they may begin.
  // Fetches not begun: those that are ready when the link is free, and those that are ready later.
  Queue<NeededLater> there_;
  Queue<ThereLater> coming_;
  std::vector<bool> is_waiting_;  // By range: its fetch is in one of the queues.
  int64_t rounds_ = 0;
  int32_t position_ = -1;
  int64_t slots_used_ = 0;
  int64_t fresh_slots_ = 0;  // Taken in this interval and not used by another range in it.
  size_t next_fetch_ = 0, next_eviction_ = 0, next_out_ = 0;
  Prediction totals_;
  std::vector<int64_t> device_bytes_;
  std::vector<SimulatedEvent> events_;
};

}  // namespace gemini::policies
