// SPDX-License-Identifier: Apache-2.0
// The optimizer's updates in HOST in a simulation: one after another, while the operators of the
// next round run.
// Units: nanoseconds since the first round's beginning; ranges by index.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/host_clock.h"
#include "policies/simulator/playback_record.h"
#include "policies/simulator/simulated_time.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

class UpdateLane {
 public:
  // When a range's bundles are committed, one after the other and evenly; 0: before all rounds.
  struct Commits {
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    StallCause cause = StallCause::kUpdate;  // kTransfer: they waited for a late gradient.
  };

  // All outlive this.
  UpdateLane(const RangeTrace& trace, const Plan& plan, const CostModel& costs, HostClock& host,
             PlaybackRecord& record);

  // Updates what the plan has updated in HOST, from `begin_ns` on: first those whose late gradients
  // have arrived (`arrived_ns`, by gradient range), as they arrived, then the others in the plan's
  // order.
  void Play(int64_t begin_ns, absl::Span<const int64_t> arrived_ns);

  // Of the param range's last update.
  const Commits& commits(int32_t range) const { return commits_[range]; }
  // When the last update is done.
  Moment free() const { return free_; }

 private:
  void UpdateRange(int32_t range, StallCause cause);
  // The optimizer states of a range that is updated from `begin_ns` on, if they pass through HOST:
  // all at once.
  void MoveStates(const PlannedRange& updated, int64_t begin_ns);

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  HostClock& host_;
  PlaybackRecord& record_;
  Moment free_ = {.cause = StallCause::kUpdate};
  std::vector<Commits> commits_;  // By param range.
  std::vector<bool> is_late_;     // By param range: its gradients are.
};

}  // namespace gemini::policies
