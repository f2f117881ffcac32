// SPDX-License-Identifier: Apache-2.0
// The state of a simulation (policies/simulator.h states the model): plays a plan round after round.
// Units: nanoseconds since the first round's beginning; slots; ranges and positions by index.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan.h"
#include "policies/range_trace.h"
#include "policies/simulator.h"

namespace gemini::policies {

// Which of the fetches that may begin goes first.
enum class FetchChoice { kInOrder, kNeededFirst };

class Playback {
 public:
  // `plan` is a valid plan of `trace`, which keeps its gradients on DEVICE. All outlive this.
  Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs, FetchChoice choice,
           bool with_events);

  // Plays a round; returns how long it took.
  int64_t PlayRound();

  // Plays until a round takes as long as the one before, or a few; returns what the last one did, but for
  // device_floor_bytes.
  Simulation PlayToSteadyState();

  int64_t now_ns() const { return now_ns_; }
  // By fetch of the plan: when the one listed in round kWatchedRound began, in that round or the next.
  static constexpr int64_t kWatchedRound = 1;  // The first that does not begin with all there.
  const std::vector<int64_t>& begun_ns() const { return begun_ns_; }

 private:
  struct Vacated {
    int64_t ns = 0;
    int32_t position = -1;  // In whose interval of the round under way.
  };
  // When something is there, and what it waited for.
  struct Moment {
    int64_t ns = 0;
    StallCause cause = StallCause::kTransfer;
  };
  // Of a range's bundles, one after the other and evenly; 0: before all rounds.
  struct Commits {
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    StallCause cause = StallCause::kUpdate;  // kTransfer: they waited for a late gradient.
  };
  struct Waiting {
    int64_t needed_at = 0;  // Counted from the first round.
    int32_t fetch = 0;
    bool operator>(const Waiting& other) const {
      return needed_at != other.needed_at ? needed_at > other.needed_at : fetch > other.fetch;
    }
  };
  static constexpr int32_t kNobody = -1;

  int64_t BytesOf(int32_t range) const {
    return trace_.ranges[range].num_bundles * trace_.chunk_bytes;
  }
  // The operator's, with what it computes on DEVICE for the update.
  int64_t ComputeNs(int32_t position) const {
    return trace_.operators[position].compute_ns + (IsUpdate(position) ? device_update_ns_ : 0);
  }
  // How long the copies of the range's chunks take, `bytes` together.
  int64_t CopiesNs(int32_t range, int64_t bytes, double bytes_per_second) const;
  // 2 p: operator p asks; 2 p + 1: it has ended.
  void ReleaseFetches(int64_t moment);
  void BeginWaiting(bool all);
  void BeginFetch(int32_t index, int64_t listed_in_round);
  bool IsUpdate(int32_t position) const {
    return plan_.ends_with_update() && position == trace_.num_positions() - 1;
  }
  // Waits until the operator has what it needs; now_ns_ is then.
  void Begin(int32_t position);
  void LeaveAfter(int32_t position);
  void Vacate(int32_t range, int64_t ns, int32_t position);
  // The update's interval began then, and what leaves after it is on its way.
  void UpdateInHost(int64_t begin_ns);
  void UpdateRange(int32_t range);
  // A gradient's copy out ends then: the next operator waits for the one that it is one too many beside.
  void QueueGradient(int64_t end_ns);
  void Record(const SimulatedEvent& event);
  Simulation TakeResult(int64_t round_ns);

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  const FetchChoice choice_;
  const bool with_events_;
  const int64_t device_update_ns_;

  int64_t now_ns_ = 0;  // The last interval's end.
  int64_t round_begin_ns_ = 0;
  int64_t fetch_free_ns_ = 0;  // When each lane is.
  int64_t evict_free_ns_ = 0;
  int64_t update_free_ns_ = 0;
  std::vector<Moment> ready_;        // By range: on DEVICE since.
  std::vector<int64_t> left_ns_;     // By range: its last eviction's end.
  std::vector<int64_t> written_ns_;  // By range: its last write-back's end.
  std::vector<Commits> commits_;     // By param range: of its last update.
  std::vector<int64_t> slot_of_;     // By range; kNobody: not on DEVICE.
  std::vector<bool> is_late_;        // By param range: its gradients are.
  std::vector<Vacated> vacated_;     // By slot.
  std::array<int64_t, kMaxGradientsUnderWay> gradient_ends_ns_ = {};  // The last ones, in turn.
  int64_t gradients_ = 0;                                             // Ever.
  int64_t gradients_ns_ = 0;          // When few enough are under way.
  std::vector<int64_t> begun_ns_;     // By fetch.
  std::vector<int64_t> released_ns_;  // By fetch: when it might begin.
  std::vector<int32_t> by_release_;   // Fetches, in the order in which they may begin.
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<Waiting>> waiting_;
  int64_t rounds_ = 0;
  int32_t position_ = -1;
  int64_t slots_used_ = 0;
  int64_t fresh_slots_ = 0;  // Taken in this interval, and by nobody else in it.
  size_t next_fetch_ = 0, next_eviction_ = 0, next_out_ = 0;
  Prediction totals_;
  std::vector<int64_t> device_bytes_;
  std::vector<SimulatedEvent> events_;
};

}  // namespace gemini::policies
