// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_follower.h"

#include "gemini/system/status_macros.h"
#include "policies/simulator/host_foresight.h"

namespace gemini::client {

absl::Status PlanFollower::Start(const PlannedPhase& phase, int64_t first, Mutex& mutex) {
  moving_.Await(mutex);
  // Another thread may replace it meanwhile.
  const std::shared_ptr<const BoundPlan> plan = phase.plan;
  const UnlockedWork::Scope scope(moving_, mutex);
  StopUnlocked();
  GEMINI_RETURN_IF_ERROR(executor_.Start(plan, first));
  Foresee(&plan->plan);
  running_ = &phase;
  return absl::OkStatus();
}

void PlanFollower::Leave(Divergence cause) {
  executor_.Abandon(cause);
  Foresee(nullptr);
}

void PlanFollower::Stop(Mutex& mutex) {
  moving_.Await(mutex);
  if (running_ == nullptr) return;
  const UnlockedWork::Scope scope(moving_, mutex);
  StopUnlocked();
}

void PlanFollower::StopUnlocked() {
  if (running_ == nullptr) return;
  executor_.Stop();
  Foresee(nullptr);
  running_ = nullptr;
}

void PlanFollower::Foresee(const Plan* plan) {
  const bool foresees = plan != nullptr && !plan->host_uses.empty();
  if (!foresees && movers_.empty()) return;
  for (size_t space = 0; space < stores_.size(); ++space) {
    ChunkStore& store = *stores_[space];
    if (movers_.size() == space) {
      movers_.push_back(std::make_unique<ChunkMover>(store));
      movers_.back()->StartForPlan();
    }
    store.Foresee(foresees ? policies::HostForesight(
                                 plan->host_uses, plan->prediction.round_ns, plan->host_read_ns,
                                 static_cast<int32_t>(space), store.memory().layout().num_chunks)
                           : policies::HostForesight());
  }
}

}  // namespace gemini::client
