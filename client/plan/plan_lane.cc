// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_lane.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <utility>

#include "client/device/planned_placement.h"
#include "gemini/plan/gate.h"

namespace gemini::client {
namespace {

using Activity = FollowedPlan::Activity;

PlanTurn TurnIn(int64_t round, PlanTurn in_round, PlanTurn of_round) {
  return {.fetches = in_round.fetches + round * of_round.fetches,
          .evictions = in_round.evictions + round * of_round.evictions};
}

}  // namespace

PlanLane::PlanLane(DeviceTier& tier, size_t lane) : tier_(tier), lane_(lane) {
  constexpr std::array<const char*, FollowedPlan::kNumLanes> kNames = {
      "gemini-plan-in", "gemini-plan-out", "gemini-plan-bck"};
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), kNames[lane]);
}

PlanLane::~PlanLane() {
  {
    MutexLock lock(tier_.mutex);
    quitting_ = true;
    tier_.lanes.notify_all();
  }
  thread_.join();
}

void PlanLane::Follow(std::shared_ptr<const PlanRun> run) {
  MutexLock lock(tier_.mutex);
  next_ = std::move(run);
  tier_.lanes.notify_all();
}

void PlanLane::Run() {
  MutexLock lock(tier_.mutex);
  for (;;) {
    while (next_ == nullptr && !quitting_) tier_.mutex.WaitFor(tier_.lanes);
    if (next_ == nullptr) return;
    const std::shared_ptr<const PlanRun> run = std::exchange(next_, nullptr);
    lane_ == FollowedPlan::kIn ? FollowFetches(*run) : FollowEvictions(*run);
    tier_.plan.SetActivity(lane_, Activity::kIdle);
    tier_.NotifyPlan();
  }
}

void PlanLane::FollowFetches(const PlanRun& run) {
  const BoundPlan& bound = *run.plan;
  const Plan& plan = bound.plan;
  for (const PlannedResident& resident : run.first_fetches) {
    const PlannedFetch fetch = {.range = resident.range, .slot = resident.slot};
    if (!Fetch(bound, fetch, Gate().InRoundAt(run.first).value, {})) return;
  }
  for (int64_t round = 0; !plan.fetches.empty(); ++round) {
    const int64_t begin = run.first + round * plan.num_positions();
    for (size_t i = 0; i < plan.fetches.size(); ++i) {
      const PlannedFetch& fetch = plan.fetches[i];
      const PlanTurn turn = TurnIn(round, bound.fetch_turns[i], bound.moves_of[fetch.range]);
      if (!Fetch(bound, fetch, GateOf(fetch).InRoundAt(begin).value, turn)) return;
    }
  }
}

void PlanLane::FollowEvictions(const PlanRun& run) {
  const BoundPlan& bound = *run.plan;
  const Plan& plan = bound.plan;
  const bool is_back = lane_ == FollowedPlan::kBack;
  const std::vector<bool>& in_back_lane = bound.behind_write_backs;
  const bool has_any = std::ranges::find(in_back_lane, is_back) != in_back_lane.end();
  for (int64_t round = 0; has_any; ++round) {
    const int64_t begin = run.first + round * plan.num_positions();
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const PlannedEviction& eviction = plan.evictions[i];
      if (in_back_lane[i] != is_back) continue;
      const PlanTurn turn = TurnIn(round, bound.eviction_turns[i], bound.moves_of[eviction.range]);
      if (!Evict(bound, eviction, GateOf(eviction).InRoundAt(begin).value, turn)) return;
    }
  }
}

bool PlanLane::Fetch(const BoundPlan& plan, const PlannedFetch& fetch, int64_t gate,
                     PlanTurn turn) {
  if (!AwaitGate(gate, Activity::kGate) || !AwaitTurn(fetch.range, turn)) return false;
  const RangeId range = plan.ranges[fetch.range];
  for (;;) {
    const FetchStart start = BeginFetch(tier_, range, fetch.slot, fetch.blank);
    if (start == FetchStart::kStarted) break;
    if (start == FetchStart::kEnded) return false;
    // Non-model data is above what the plan leaves for it, at least until the operators go on.
    if (!AwaitGate(tier_.progress.reached() + 1, Activity::kBudget)) return false;
  }
  if (!fetch.blank && !FinishFetch(tier_, range).ok()) return false;
  ++tier_.plan.counts(fetch.range).fetches;
  tier_.lanes.notify_all();
  return true;
}

bool PlanLane::Evict(const BoundPlan& plan, const PlannedEviction& eviction, int64_t gate,
                     PlanTurn turn) {
  if (!AwaitGate(gate, Activity::kGate) || !AwaitTurn(eviction.range, turn)) return false;
  const RangeId range = plan.ranges[eviction.range];
  for (;;) {
    const int64_t reached = tier_.progress.reached();
    const absl::Status status = eviction.stays ? tier_.Clean(range) : tier_.Evict(range);
    if (status.ok()) break;
    if (!absl::IsFailedPrecondition(status)) {
      tier_.EndPlan(Divergence::kFailed);
      return false;
    }
    // This thread came late, and an operator found the range still there; or somebody keeps it.
    if (!AwaitGate(reached + 1, Activity::kPinned)) return false;
  }
  ++tier_.plan.counts(eviction.range).evictions;
  tier_.lanes.notify_all();
  return true;
}

bool PlanLane::AwaitGate(int64_t gate, Activity activity) {
  if (tier_.progress.reached() < gate) {
    tier_.plan.WaitForGate(lane_, activity, gate);
    tier_.NotifyPlan();
    while (tier_.progress.active() && tier_.progress.reached() < gate) {
      tier_.mutex.WaitFor(tier_.lanes);
    }
    tier_.plan.SetActivity(lane_, Activity::kWorking);
  }
  return tier_.progress.active();
}

bool PlanLane::AwaitTurn(int32_t range, PlanTurn turn) {
  if (!tier_.plan.IsTurn(range, turn)) {
    tier_.plan.WaitForTurn(lane_, range, turn);
    tier_.NotifyPlan();
    while (tier_.progress.active() && !tier_.plan.IsTurn(range, turn)) {
      tier_.mutex.WaitFor(tier_.lanes);
    }
    tier_.plan.SetActivity(lane_, Activity::kWorking);
  }
  return tier_.progress.active();
}

}  // namespace gemini::client
