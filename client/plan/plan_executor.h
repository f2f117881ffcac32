// SPDX-License-Identifier: Apache-2.0
// Follows a plan round after round: it moves ranges ahead of the operators, in both directions at
// once. A fetch begins when its `after` has passed and its slots are free.
// Threads: those of three lanes (client/plan/plan_lane.h).
// Thread: Start, Stop and the destructor: one at a time. The rest: any.
// End: a lane that meets something that the plan did not foresee, or a call of the tracker, ends
// the plan with a cause. No new move begins, moves in flight are completed, and waiting operators
// continue on-line. An operator never waits for a lane that waits for that operator, because a
// waiter checks again whenever a lane begins to wait.
// Locks: the tier's. It has none of its own.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "client/device/device_tier.h"
#include "client/device/residency.h"
#include "client/plan/plan_binding.h"
#include "client/plan/plan_lane.h"
#include "gemini/plan/gate.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

class PlanExecutor {
 public:
  // `residency` outlives this, and has one executor at most.
  explicit PlanExecutor(Residency& residency);
  ~PlanExecutor();
  PlanExecutor(const PlanExecutor&) = delete;
  PlanExecutor& operator=(const PlanExecutor&) = delete;

  // Begins to follow the plan with operator `first`, the next one, counted since the start of time.
  // Evicts at once the ranges that must not be on DEVICE when the round begins, and fetches those
  // that are missing in the background. FAILED_PRECONDITION: a range that must leave is pinned.
  // Any other error says that a write-back failed. Call it only while no plan is followed.
  absl::Status Start(std::shared_ptr<const BoundPlan> plan, int64_t first);
  // Ends the plan without a cause and waits until its moves have ended. Copies may be in flight
  // still, whose HOST slots are released without help (client/device/copy_landings.h).
  void Stop();
  // Ends the plan with a cause. Does not wait.
  void Abandon(Divergence cause);
  bool active() const { return tier_.progress.active(); }
  // Returns why the plan ended, if not by Stop; kOperator while active.
  Divergence cause() const { return tier_.progress.cause(); }

  // Blocks until the evictions that are due are made, or cannot be made before the operators
  // advance.
  void AwaitEvictions();
  // Pause waits for moves that have begun or are due. From then to Resume no fetch begins.
  void Pause();
  void Resume();
  // Blocks until nothing can move before the operators advance, and no copy is in flight.
  void AwaitRest();

  // Reports how far the operators are, counted since the start of time: the begin of one says that
  // all before it have ended. Threads may call it in any order; an earlier moment than before
  // changes nothing. Makes a system call only if a lane waits for this very moment.
  void Progressed(Gate moment) {
    if (tier_.progress.Reach(moment.value)) [[unlikely]]
      OpenGates();
  }

 private:
  void OpenGates();

  DeviceTier& tier_;
  std::array<PlanLane, FollowedPlan::kNumLanes> lanes_;
};

}  // namespace gemini::client
