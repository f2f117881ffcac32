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
  for (std::vector<int64_t>& moves : moves_) moves.assign(steps.ranges.size(), 0);
  for (size_t i = 0; i < initial.size(); ++i) {
    if (keep[i].second == initial[i].second) {
      ++moves_[kIn][residents[i].range];
    } else {
      first_fetches_.push_back(residents[i]);
      mark(initial[i].first);
    }
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

void PlanExecutor::Pause() {
  paused_.store(true, std::memory_order_release);
  {
    // An eviction that came late would take what is fetched after the update.
    MutexLock lock(mutex_);
    while (active() && !AtGate(kOut)) mutex_.WaitFor(changed_);
  }
  residency_.AwaitPlanned();
}

void PlanExecutor::Resume() {
  paused_.store(false, std::memory_order_release);
  residency_.Nudge();
}

void PlanExecutor::AwaitRest() {
  MutexLock lock(mutex_);
  while (active() && !(AtGate(kIn) && AtGate(kOut) && under_way_ == 0)) {
    mutex_.WaitFor(changed_);
  }
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

// Whether the worker does nothing more before the operators, or the other worker, go on.
bool PlanExecutor::AtGate(size_t which) const {
  const Worker& worker = workers_[which];
  switch (worker.activity) {
    case Activity::kIdle:
      return true;
    case Activity::kGate:
    case Activity::kBudget:
    case Activity::kPinned:
      return worker.gate > progress_.load(std::memory_order_seq_cst);
    case Activity::kTurn:
      return moves_[1 - which][worker.turn_range] < worker.turn;
    default:
      return false;
  }
}

// Whether nothing more comes to DEVICE unless the operators go on.
bool PlanExecutor::Stuck(bool blocked) const {
  const Activity fetching = workers_[kIn].activity;
  if (fetching == Activity::kPlacing) return blocked && AtGate(kOut);
  if (fetching == Activity::kTurn) return AtGate(kIn) && AtGate(kOut);
  return AtGate(kIn);
}

bool PlanExecutor::IsEvicting() const {
  MutexLock lock(mutex_);
  return !AtGate(kOut);
}

bool PlanExecutor::IsComing(RangeId range, bool blocked) {
  const auto index = static_cast<size_t>(range.value());
  // Somebody wants what the plan does not bring, or not now; or keeps what should leave.
  Divergence cause = Divergence::kPinned;
  {
    MutexLock lock(mutex_);
    if (index < is_fetched_.size() && is_fetched_[index]) {
      if (!Stuck(blocked)) return true;
      if (workers_[kIn].activity == Activity::kBudget) cause = Divergence::kNonModel;
    }
  }
  Interrupt(cause);
  return false;
}

StallCause PlanExecutor::WaitingFor() const {
  MutexLock lock(mutex_);
  const Worker& fetching = workers_[kIn];
  switch (fetching.activity) {
    case Activity::kTurn:
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
    changed_.notify_all();
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

bool PlanExecutor::WaitForTurn(size_t worker, int32_t range, int64_t turn) {
  {
    MutexLock lock(mutex_);
    if (moves_[1 - worker][range] >= turn) return active();
    workers_[worker].activity = Activity::kTurn;
    workers_[worker].turn_range = range;
    workers_[worker].turn = turn;
    changed_.notify_all();
  }
  residency_.Nudge();
  MutexLock lock(mutex_);
  while (active() && moves_[1 - worker][range] < turn) mutex_.WaitFor(changed_);
  workers_[worker].activity = Activity::kWorking;
  return active();
}

bool PlanExecutor::Fetch(const BoundPlan& plan, int32_t range, SlotId slot, int64_t gate,
                         int64_t turn) {
  if (!WaitForGate(kIn, gate, Activity::kGate) || !WaitForTurn(kIn, range, turn)) return false;
  for (;;) {
    SetActivity(kIn, Activity::kPlacing);
    const Residency::FetchStart start = residency_.BeginFetch(plan.ranges[range], slot);
    SetActivity(kIn, Activity::kWorking);
    if (start == Residency::FetchStart::kStarted) break;
    if (start == Residency::FetchStart::kEnded) return false;
    // Non-model data is above what the plan leaves for it, at least until the operators go on.
    const int64_t next = progress_.load(std::memory_order_seq_cst) + 1;
    if (!WaitForGate(kIn, next, Activity::kBudget)) return false;
  }
  if (!CopyIn(plan.ranges[range])) return false;
  MutexLock lock(mutex_);
  ++moves_[kIn][range];
  changed_.notify_all();
  return true;
}

bool PlanExecutor::CopyIn(RangeId range) {
  const RangeChunks what = residency_.Describe(range);
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

bool PlanExecutor::Evict(const BoundPlan& plan, int32_t range, int64_t gate, int64_t turn) {
  if (!WaitForGate(kOut, gate, Activity::kGate) || !WaitForTurn(kOut, range, turn)) return false;
  for (;;) {
    const int64_t progress = progress_.load(std::memory_order_seq_cst);
    const absl::Status status = residency_.EvictPlanned(plan.ranges[range]);
    if (status.ok()) break;
    if (!absl::IsFailedPrecondition(status)) {
      Abandon(Divergence::kFailed);
      return false;
    }
    // This thread came late, and an operator found the range still there; or somebody keeps it.
    if (!WaitForGate(kOut, progress + 1, Activity::kPinned)) return false;
  }
  MutexLock lock(mutex_);
  ++moves_[kOut][range];
  changed_.notify_all();
  return true;
}

void PlanExecutor::FollowFetches(const BoundPlan& bound,
                                 absl::Span<const PlannedResident> first_fetches) {
  int64_t first;
  {
    MutexLock lock(mutex_);
    first = first_;
  }
  for (const PlannedResident& resident : first_fetches) {
    if (!Fetch(bound, resident.range, resident.slot, 2 * first, 0)) return;
  }
  const Plan& plan = bound.plan;
  for (int64_t round = 0; !plan.fetches.empty(); ++round) {
    const int64_t begin = 2 * (first + round * plan.num_positions());
    for (size_t i = 0; i < plan.fetches.size(); ++i) {
      const PlannedFetch& fetch = plan.fetches[i];
      const int64_t turn = bound.fetch_turns[i] + round * bound.evictions_of[fetch.range];
      if (!Fetch(bound, fetch.range, fetch.slot, begin + GateOf(fetch), turn)) return;
    }
  }
}

void PlanExecutor::FollowEvictions(const BoundPlan& bound) {
  int64_t first;
  {
    MutexLock lock(mutex_);
    first = first_;
  }
  const Plan& plan = bound.plan;
  for (int64_t round = 0; !plan.evictions.empty(); ++round) {
    const int64_t begin = 2 * (first + round * plan.num_positions());
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const int32_t range = plan.evictions[i].range;
      const int64_t turn = bound.eviction_turns[i] + round * bound.fetches_of[range];
      if (!Evict(bound, range, begin + GateOf(plan.evictions[i]), turn)) return;
    }
  }
}

void PlanExecutor::RunFetches() {
  for (int64_t run = 0;;) {
    std::shared_ptr<const BoundPlan> plan;
    std::vector<PlannedResident> first_fetches;
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
