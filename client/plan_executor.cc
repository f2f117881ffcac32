// SPDX-License-Identifier: Apache-2.0
#include "client/plan_executor.h"

#include <pthread.h>

#include <algorithm>

#include "gemini/status_macros.h"

namespace gemini::client {

PlanExecutor::PlanExecutor(Residency& residency) : residency_(residency) {
  residency_.set_planned_moves(this);
  threads_[0] = std::thread([this] { RunFetches(); });
  threads_[1] = std::thread([this] { RunEvictions(); });
  threads_[2] = std::thread([this] { RunLandings(); });
  constexpr std::array<const char*, 3> kNames = {"gemini-plan-in", "gemini-plan-out",
                                                 "gemini-plan-end"};
  for (size_t i = 0; i < threads_.size(); ++i) {
    ::pthread_setname_np(threads_[i].native_handle(), kNames[i]);
  }
}

PlanExecutor::~PlanExecutor() {
  Stop();
  {
    MutexLock lock(mutex_);
    quitting_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  residency_.set_planned_moves(nullptr);
}

absl::Status PlanExecutor::Start(std::shared_ptr<const BoundPlan> plan, int64_t first) {
  Stop();
  std::vector<std::pair<RangeId, SlotId>> initial;
  // Those that are needed first come first.
  std::vector<int32_t> first_need(plan->ranges.size(), std::numeric_limits<int32_t>::max());
  const Plan& steps = plan->plan;
  for (int32_t position = steps.num_positions() - 1; position >= 0; --position) {
    for (int32_t i = steps.first_use[position]; i < steps.first_use[position + 1]; ++i) {
      first_need[steps.uses[i]] = position;
    }
  }
  std::vector<PlannedResident> residents = steps.initial;
  std::ranges::stable_sort(
      residents, {}, [&](const PlannedResident& resident) { return first_need[resident.range]; });
  for (const PlannedResident& resident : residents) {
    initial.emplace_back(plan->ranges[resident.range], resident.slot);
  }
  std::vector<std::pair<RangeId, SlotId>> keep = initial;
  GEMINI_RETURN_IF_ERROR(residency_.Vacate(absl::MakeSpan(keep)));

  MutexLock lock(mutex_);
  first_fetches_.clear();
  is_fetched_.clear();
  const auto mark = [this](RangeId range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto index = static_cast<size_t>(range.value());
    if (is_fetched_.size() <= index) is_fetched_.resize(index + 1);
    is_fetched_[index] = true;
  };
  for (size_t i = 0; i < initial.size(); ++i) {
    if (keep[i].second == initial[i].second) continue;
    first_fetches_.push_back(initial[i]);
    mark(initial[i].first);
  }
  for (const PlannedFetch& fetch : steps.fetches) mark(plan->ranges[fetch.range]);
  plan_ = std::move(plan);
  first_ = first;
  progress_.store(2 * first, std::memory_order_seq_cst);
  cause_.store(Divergence::kOperator, std::memory_order_release);
  active_.store(true, std::memory_order_release);
  for (Worker& worker : workers_) worker.activity = Activity::kWorking;
  ++run_;
  changed_.notify_all();
  return absl::OkStatus();
}

void PlanExecutor::Interrupt(Divergence cause) {
  if (!active()) return;
  MutexLock lock(mutex_);
  if (!active()) return;
  cause_.store(cause, std::memory_order_release);
  active_.store(false, std::memory_order_release);
  changed_.notify_all();
}

void PlanExecutor::Abandon(Divergence cause) {
  Interrupt(cause);
  residency_.Nudge();
}

void PlanExecutor::Stop() {
  Abandon(Divergence::kOperator);
  MutexLock lock(mutex_);
  while (workers_[kIn].activity != Activity::kIdle || workers_[kOut].activity != Activity::kIdle ||
         under_way_ > 0) {
    mutex_.WaitFor(changed_);
  }
  plan_.reset();
}

void PlanExecutor::OpenGates() {
  MutexLock lock(mutex_);
  const int64_t progress = progress_.load(std::memory_order_seq_cst);
  for (Worker& worker : workers_) {
    if (worker.gate > progress) continue;
    worker.gate = kNoGate;  // Here already, so that the operators until it runs need not come here.
    worker.activity = Activity::kWorking;
  }
  UpdateGate();
  changed_.notify_all();
}

void PlanExecutor::UpdateGate() {
  gate_.store(std::min(workers_[kIn].gate, workers_[kOut].gate), std::memory_order_seq_cst);
}

bool PlanExecutor::AtGate(const Worker& worker) const {
  return worker.activity == Activity::kIdle ||
         ((worker.activity == Activity::kGate || worker.activity == Activity::kBudget) &&
          worker.gate > progress_.load(std::memory_order_seq_cst));
}

// Whether nothing moves any more unless the operators go on.
bool PlanExecutor::Stuck(bool blocked) const {
  if (workers_[kIn].activity == Activity::kPlacing) return blocked && AtGate(workers_[kOut]);
  return AtGate(workers_[kIn]);
}

bool PlanExecutor::IsEvicting() const {
  MutexLock lock(mutex_);
  return !AtGate(workers_[kOut]);
}

bool PlanExecutor::IsComing(RangeId range, bool blocked) {
  const auto index = static_cast<size_t>(range.value());
  Divergence cause = Divergence::kPinned;  // Somebody wants what the plan does not bring.
  {
    MutexLock lock(mutex_);
    if (index < is_fetched_.size() && is_fetched_[index]) {
      if (!Stuck(blocked)) return true;
      const Activity activity = workers_[kIn].activity;
      cause = activity == Activity::kBudget    ? Divergence::kNonModel
              : activity == Activity::kPlacing ? Divergence::kPinned
                                               : Divergence::kOperator;
    }
  }
  Interrupt(cause);
  return false;
}

StallCause PlanExecutor::WaitingFor() const {
  MutexLock lock(mutex_);
  const Worker& fetching = workers_[kIn];
  switch (fetching.activity) {
    case Activity::kPlacing:
    case Activity::kBudget:
      return StallCause::kRoom;
    case Activity::kAcquire:
      return fetching.store->AwaitsCommit(fetching.chunk) ? StallCause::kUpdate : StallCause::kNvme;
    default:
      return StallCause::kTransfer;
  }
}

void PlanExecutor::SetActivity(size_t worker, Activity activity, ChunkStore* store, ChunkId chunk) {
  MutexLock lock(mutex_);
  workers_[worker].activity = activity;
  workers_[worker].store = store;
  workers_[worker].chunk = chunk;
}

void PlanExecutor::Rest(size_t worker) {
  SetActivity(worker, Activity::kIdle);
  residency_.Nudge();
  MutexLock lock(mutex_);
  changed_.notify_all();
}

bool PlanExecutor::WaitForGate(size_t worker, int64_t gate, Activity activity) {
  if (progress_.load(std::memory_order_seq_cst) >= gate) return active();
  {
    MutexLock lock(mutex_);
    workers_[worker].activity = activity;
    workers_[worker].gate = gate;
    UpdateGate();
  }
  residency_.Nudge();
  MutexLock lock(mutex_);
  while (active() && progress_.load(std::memory_order_seq_cst) < gate) mutex_.WaitFor(changed_);
  workers_[worker].activity = Activity::kWorking;
  workers_[worker].gate = kNoGate;
  UpdateGate();
  return active();
}

bool PlanExecutor::WaitForCopies() {
  MutexLock lock(mutex_);
  if (under_way_ >= kMaxCopies) {
    workers_[kIn].activity = Activity::kCopies;
    while (active() && under_way_ >= kMaxCopies) mutex_.WaitFor(changed_);
    workers_[kIn].activity = Activity::kWorking;
  }
  return active();
}

bool PlanExecutor::Fetch(RangeId range, SlotId slot, int64_t gate) {
  if (!WaitForGate(kIn, gate, Activity::kGate)) return false;
  for (;;) {
    SetActivity(kIn, Activity::kPlacing);
    const Residency::FetchStart start = residency_.BeginFetch(range, slot);
    SetActivity(kIn, Activity::kWorking);
    if (start == Residency::FetchStart::kStarted) break;
    if (start == Residency::FetchStart::kEnded) return false;
    // Non-model data is above what the plan leaves for it, at least until an operator ends.
    const int64_t next = progress_.load(std::memory_order_seq_cst) + 1;
    if (!WaitForGate(kIn, next, Activity::kBudget)) return false;
  }
  const Residency::Description what = residency_.Describe(range);
  CopyEvent last;
  for (int64_t i = 0; i < what.num_bundles; ++i) {
    // What was begun is brought to its end also when the plan has ended: half a range is of no use.
    WaitForCopies();
    const ChunkId chunk = ChunkOf(BundleId(what.first.value() + i), what.kind);
    SetActivity(kIn, Activity::kAcquire, what.store, chunk);
    absl::StatusOr<HostChunk> host = what.store->Acquire(chunk);
    SetActivity(kIn, Activity::kWorking);
    if (!host.ok()) {
      Abandon(Divergence::kFailed);
      residency_.EndFetch(range, last, /*all=*/false);
      return false;
    }
    last = residency_.FetchChunk(range, i, host->data());
    const bool ends_fetch = i + 1 == what.num_bundles;
    // Before its landing is counted.
    if (ends_fetch) residency_.EndFetch(range, last, /*all=*/true);
    MutexLock lock(mutex_);
    landings_.push_back({last, *std::move(host), ends_fetch});
    ++under_way_;
    changed_.notify_all();
  }
  return true;
}

void PlanExecutor::FollowFetches(const BoundPlan& bound,
                                 absl::Span<const std::pair<RangeId, SlotId>> first_fetches) {
  int64_t round_begin;
  {
    MutexLock lock(mutex_);
    round_begin = first_;
  }
  for (const auto& [range, slot] : first_fetches) {
    if (!Fetch(range, slot, 2 * round_begin)) return;
  }
  const Plan& plan = bound.plan;
  while (!plan.fetches.empty()) {
    for (const PlannedFetch& fetch : plan.fetches) {
      // On demand, it begins with its operator.
      const int64_t gate =
          2 * (round_begin + fetch.after) + (fetch.after < fetch.needed_at ? 2 : 1);
      if (!Fetch(bound.ranges[fetch.range], fetch.slot, gate)) return;
    }
    round_begin += plan.num_positions();
  }
}

void PlanExecutor::FollowEvictions(const BoundPlan& bound) {
  int64_t round_begin;
  {
    MutexLock lock(mutex_);
    round_begin = first_;
  }
  const Plan& plan = bound.plan;
  while (!plan.evictions.empty()) {
    for (const PlannedEviction& eviction : plan.evictions) {
      if (!WaitForGate(kOut, 2 * (round_begin + eviction.after) + 2, Activity::kGate)) return;
      const absl::Status status = residency_.EvictPlanned(bound.ranges[eviction.range]);
      if (!status.ok()) {
        Abandon(absl::IsFailedPrecondition(status) ? Divergence::kPinned : Divergence::kFailed);
        return;
      }
    }
    round_begin += plan.num_positions();
  }
}

void PlanExecutor::RunFetches() {
  for (int64_t run = 0;;) {
    std::shared_ptr<const BoundPlan> plan;
    std::vector<std::pair<RangeId, SlotId>> first_fetches;
    {
      MutexLock lock(mutex_);
      while (run_ == run && !quitting_) mutex_.WaitFor(changed_);
      if (run_ == run) return;
      run = run_;
      plan = plan_;
      first_fetches = first_fetches_;
    }
    FollowFetches(*plan, first_fetches);
    Rest(kIn);
  }
}

void PlanExecutor::RunEvictions() {
  for (int64_t run = 0;;) {
    std::shared_ptr<const BoundPlan> plan;
    {
      MutexLock lock(mutex_);
      while (run_ == run && !quitting_) mutex_.WaitFor(changed_);
      if (run_ == run) return;
      run = run_;
      plan = plan_;
    }
    FollowEvictions(*plan);
    Rest(kOut);
  }
}

void PlanExecutor::RunLandings() {
  for (;;) {
    Landing landing;
    {
      MutexLock lock(mutex_);
      while (landings_.empty() && !quitting_) mutex_.WaitFor(changed_);
      if (landings_.empty()) return;
      landing = std::move(landings_.front());
      landings_.pop_front();
    }
    residency_.WaitForCopy(landing.event);
    landing.host = {};
    if (landing.ends_fetch) residency_.Land();
    MutexLock lock(mutex_);
    --under_way_;
    changed_.notify_all();
  }
}

}  // namespace gemini::client
