// SPDX-License-Identifier: Apache-2.0
// Runs a thread that makes one kind of a plan's moves, round after round, in the plan's order: the
// fetches, the evictions that are BehindWriteBacks (gemini/plan/plan.h), or the other evictions.
// Thread: its own. The constructor, Follow and the destructor: one at a time.
// End: what the plan did not foresee ends it with a cause: a slot that nothing will vacate, a
// pinned chunk, or a charge or a copy that fails. No new move begins then, and those that were
// begun are completed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/device/device_tier.h"
#include "client/device/followed_plan.h"
#include "client/plan/plan_binding.h"
#include "gemini/plan/plan.h"

namespace gemini::client {

// A plan that is followed from operator `first` on.
struct PlanRun {
  std::shared_ptr<const BoundPlan> plan;
  int64_t first = 0;                           // Counted since the start of time.
  std::vector<PlannedResident> first_fetches;  // Those that are missing when it begins.
};

class PlanLane {
 public:
  // `lane` is one of FollowedPlan's. `tier` outlives this.
  PlanLane(DeviceTier& tier, size_t lane);
  PlanLane(const PlanLane&) = delete;
  PlanLane& operator=(const PlanLane&) = delete;
  // Call it when the lane is idle.
  ~PlanLane();

  // Begins to follow the plan, which was begun in the tier. The lane was idle before that.
  void Follow(std::shared_ptr<const PlanRun> run);

 private:
  void Run();
  void FollowFetches(const PlanRun& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  void FollowEvictions(const PlanRun& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  // Make a move at its gate and its turn. Return false when the plan has ended.
  bool Fetch(const BoundPlan& plan, const PlannedFetch& fetch, int64_t gate, PlanTurn turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  bool Evict(const BoundPlan& plan, const PlannedEviction& eviction, int64_t gate, PlanTurn turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  bool AwaitGate(int64_t gate, FollowedPlan::Activity activity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);
  bool AwaitTurn(int32_t range, PlanTurn turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex);

  DeviceTier& tier_;
  const size_t lane_;
  std::shared_ptr<const PlanRun> next_ ABSL_GUARDED_BY(tier_.mutex);
  bool quitting_ ABSL_GUARDED_BY(tier_.mutex) = false;
  std::thread thread_;
};

}  // namespace gemini::client
