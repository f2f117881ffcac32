// SPDX-License-Identifier: Apache-2.0
// Has a plan followed below DEVICE and on it: the executor moves its ranges, and HOST goes by what
// it foresees there.
// Thread: one at a time. Start and Stop wait for copies under way, so the tracker's lock is released
// meanwhile (client/plan/unlocked_work.h).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/host/chunk_mover.h"
#include "client/host/chunk_store.h"
#include "client/plan/plan_executor.h"
#include "client/plan/planned_phase.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

class PlanFollower {
 public:
  // `executor` outlives this; nobody else starts and stops it.
  explicit PlanFollower(PlanExecutor& executor) : executor_(executor) {}

  void AddSpace(ChunkStore& store) { stores_.push_back(&store); }
  absl::Span<ChunkStore* const> stores() const { return stores_; }  // By space.

  // Returns whether the plan of the phase is followed, so that its next round goes on with it.
  bool Follows(const PlannedPhase& phase) const {
    return running_ == &phase && phase.plan != nullptr && executor_.active();
  }
  // Returns whether this is the phase whose plan was begun last and not stopped.
  bool has_begun(const PlannedPhase& phase) const { return running_ == &phase; }
  bool has_begun_any() const { return running_ != nullptr; }
  // Stops what is followed, and begins with the phase's plan at operator `first`. Of the phase no
  // more than its address is used. Errors: of PlanExecutor::Start.
  absl::Status Start(const PlannedPhase& phase, const std::shared_ptr<const BoundPlan>& plan,
                     int64_t first);
  // Leaves the plan that is followed, if any is, with its cause. Does not wait.
  void Leave(Divergence cause);
  // Leaves it without a cause, and waits until what it has under way has landed.
  void Stop();

 private:
  // From the next operator on HOST goes by what the plan foresees there; null: by what was used.
  void Foresee(const Plan* plan);

  PlanExecutor& executor_;
  std::vector<ChunkStore*> stores_;
  std::vector<std::unique_ptr<ChunkMover>> movers_;  // By space, once needed.
  // Whose plan the executor follows, or followed before it left it.
  const PlannedPhase* running_ = nullptr;
};

}  // namespace gemini::client
