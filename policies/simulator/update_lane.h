// SPDX-License-Identifier: Apache-2.0
// Simulates the optimizer's updates in HOST, which run one after another while the operators of the
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
  // When the bundles of a range are committed. They are committed one by one at equal distances,
  // the first at first_ns; both times are 0 before the first update.
  struct Commits {
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    StallCause cause = StallCause::kUpdate;  // kTransfer: they waited for a late gradient.
  };

  // All references outlive this.
  UpdateLane(const RangeTrace& trace, const Plan& plan, const CostModel& costs, HostClock& host,
             PlaybackRecord& record);

  // Plays all updates in HOST of a round, from `begin_ns` on. Ranges whose late gradients have
  // arrived (`arrived_ns`, by gradient range) go first, in the order of arrival. The others follow
  // in the plan's order.
  void Play(int64_t begin_ns, absl::Span<const int64_t> arrived_ns);

  // Returns when the last update of a param range was committed.
  const Commits& commits(int32_t range) const { return commits_[range]; }
  // Returns when the last update is done.
  Moment free() const { return free_; }

 private:
  void UpdateRange(int32_t range, StallCause cause);
  // Records the reads and writes of the optimizer states of an updated range whose home is NVME.
  // Each direction is one transfer that begins at `begin_ns`.
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
