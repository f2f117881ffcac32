// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_executor.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "client/device/planned_placement.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

void Mark(RangeId range, std::vector<bool>& ranges) {
  const auto index = static_cast<size_t>(range.value());
  if (ranges.size() <= index) ranges.resize(index + 1);
  ranges[index] = true;
}

// The residents of the plan's beginning. Those that are needed first come first.
std::vector<PlannedResident> ResidentsByNeed(const Plan& plan) {
  std::vector<int32_t> first_need(plan.ranges.size(), std::numeric_limits<int32_t>::max());
  for (int32_t position = plan.num_positions() - 1; position >= 0; --position) {
    for (int32_t i = plan.first_use[position]; i < plan.first_use[position + 1]; ++i) {
      first_need[plan.uses[i]] = position;
    }
  }
  std::vector<PlannedResident> residents = plan.initial;
  std::ranges::stable_sort(
      residents, {}, [&](const PlannedResident& resident) { return first_need[resident.range]; });
  return residents;
}

}  // namespace

PlanExecutor::PlanExecutor(Residency& residency)
    : tier_(residency.tier()),
      lanes_{PlanLane(tier_, FollowedPlan::kIn), PlanLane(tier_, FollowedPlan::kOut),
             PlanLane(tier_, FollowedPlan::kBack)} {}

PlanExecutor::~PlanExecutor() { Stop(); }

absl::Status PlanExecutor::Start(std::shared_ptr<const BoundPlan> plan, int64_t first) {
  Stop();
  const Plan& steps = plan->plan;
  const std::vector<PlannedResident> residents = ResidentsByNeed(steps);
  std::vector<std::pair<RangeId, SlotId>> keep;
  for (const PlannedResident& resident : residents) {
    keep.emplace_back(plan->ranges[resident.range], resident.slot);
  }
  GEMINI_RETURN_IF_ERROR(Vacate(tier_, absl::MakeSpan(keep)));

  PlanContents contents;
  contents.counts.resize(steps.ranges.size());
  PlanRun run = {.plan = plan, .first = first, .first_fetches = {}};
  for (size_t i = 0; i < residents.size(); ++i) {
    if (keep[i].second == residents[i].slot) {
      ++contents.counts[residents[i].range].fetches;
    } else {
      run.first_fetches.push_back(residents[i]);
      Mark(keep[i].first, contents.fetched);
    }
  }
  for (const PlannedFetch& fetch : steps.fetches) Mark(plan->ranges[fetch.range], contents.fetched);
  for (const PlannedUpdate& update : steps.device_updates) {
    Mark(plan->ranges[update.grad()], contents.kept);
  }
  for (const int32_t range : steps.late_gradients) Mark(plan->ranges[range], contents.kept);
  {
    MutexLock lock(tier_.mutex);
    tier_.plan.Begin(std::move(contents), Gate().InRoundAt(first).value);
  }
  const auto shared = std::make_shared<const PlanRun>(std::move(run));
  for (PlanLane& lane : lanes_) lane.Follow(shared);
  return absl::OkStatus();
}

void PlanExecutor::Abandon(Divergence cause) {
  MutexLock lock(tier_.mutex);
  tier_.EndPlan(cause);
}

void PlanExecutor::Stop() {
  MutexLock lock(tier_.mutex);
  tier_.EndPlan(Divergence::kOperator);
  while (!tier_.plan.IsIdle()) tier_.mutex.WaitFor(tier_.lanes);
}

void PlanExecutor::AwaitEvictions() {
  MutexLock lock(tier_.mutex);
  while (active() && !tier_.plan.OutRests()) tier_.mutex.WaitFor(tier_.lanes);
}

void PlanExecutor::Pause() {
  MutexLock lock(tier_.mutex);
  tier_.plan.set_paused(true);
  // An eviction that came late would take what is fetched after the update.
  while (active() && !tier_.plan.OutRests()) tier_.mutex.WaitFor(tier_.lanes);
  tier_.AwaitMoves();
}

void PlanExecutor::Resume() {
  MutexLock lock(tier_.mutex);
  tier_.plan.set_paused(false);
  tier_.NotifyChange();
}

void PlanExecutor::AwaitRest() {
  {
    MutexLock lock(tier_.mutex);
    while (active() && !tier_.plan.AllRest()) tier_.mutex.WaitFor(tier_.lanes);
  }
  tier_.landings.AwaitAll();
}

void PlanExecutor::OpenGates() {
  MutexLock lock(tier_.mutex);
  tier_.plan.OpenGates();
  tier_.lanes.notify_all();
}

}  // namespace gemini::client
