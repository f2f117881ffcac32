// SPDX-License-Identifier: Apache-2.0
// Makes DEVICE and HOST follow a plan: the executor moves the plan's ranges, and each space spills
// and reads ahead in HOST by what the plan foresees.
// Moving: to leave a plan waits until its copies have ended, which may wait for NVMe, and to begin
// another waits for evictions. The lock is released meanwhile (client/plan/unlocked_work.h), and
// one thread at a time moves from one plan to another.
// Thread: any. `mutex` is the tracker's lock, which guards this; calls that take it release it
// meanwhile.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/host/chunk_mover.h"
#include "client/host/chunk_store.h"
#include "client/plan/plan_executor.h"
#include "client/plan/planned_phase.h"
#include "client/plan/unlocked_work.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class PlanFollower {
 public:
  // `executor` outlives this; nobody else starts and stops it.
  explicit PlanFollower(PlanExecutor& executor) : executor_(executor) {}

  void AddSpace(ChunkStore& store) { stores_.push_back(&store); }
  absl::Span<ChunkStore* const> stores() const { return stores_; }  // By space.

  // Returns whether the phase's plan is followed, so that its next round can continue with it.
  bool Follows(const PlannedPhase& phase) const {
    return running_ == &phase && phase.plan != nullptr && executor_.active();
  }
  bool is_moving() const { return moving_.is_under_way(); }
  // Waits until nobody moves.
  void AwaitMove(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { moving_.Await(mutex); }
  // Returns whether this is the phase whose plan was begun last, if that was not stopped. Call it,
  // and Follows, while nobody moves.
  bool has_begun(const PlannedPhase& phase) const { return running_ == &phase; }
  bool has_begun_any() const { return running_ != nullptr; }
  // Stops the plan that is followed, and begins with the phase's plan at operator `first`, counted
  // over all rounds. Check after it that this is still the next operator, and Leave if it is not.
  // Errors: of PlanExecutor::Start.
  absl::Status Start(const PlannedPhase& phase, int64_t first, Mutex& mutex)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Ends the plan that is followed, if there is one, with this cause. Does not wait.
  void Leave(Divergence cause);
  // Ends it without a cause, and waits until its moves have ended. Nobody moves when it returns.
  void Stop(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  void StopUnlocked();
  // Makes HOST follow what the plan foresees from the next operator on; null: the least recently
  // used order.
  void Foresee(const Plan* plan);

  PlanExecutor& executor_;
  UnlockedWork moving_;
  std::vector<ChunkStore*> stores_;
  std::vector<std::unique_ptr<ChunkMover>> movers_;  // By space, once needed.
  // Whose plan the executor follows, or followed before it left it.
  const PlannedPhase* running_ = nullptr;
};

}  // namespace gemini::client
