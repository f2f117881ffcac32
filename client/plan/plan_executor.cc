// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_executor.h"

#include <pthread.h>

#include <algorithm>

#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

BoundPlan::Turn TurnIn(int64_t round, BoundPlan::Turn in_round, BoundPlan::Turn of_round) {
  return {.fetches = in_round.fetches + round * of_round.fetches,
          .evictions = in_round.evictions + round * of_round.evictions};
}

}  // namespace

PlanExecutor::PlanExecutor(Residency& residency) : residency_(residency) {
  residency_.set_planned_moves(this);
  threads_[0] = std::thread([this] { RunFetches(); });
  threads_[1] = std::thread([this] { RunEvictions(kOut); });
  threads_[2] = std::thread([this] { RunEvictions(kBack); });
  threads_[3] = std::thread([this] { RunLandings(); });
  constexpr std::array<const char*, 4> kNames = {"gemini-plan-in", "gemini-plan-out",
                                                 "gemini-plan-bck", "gemini-plan-end"};
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
  is_kept_.clear();
  const auto mark = [](RangeId range, std::vector<bool>& ranges) {
    const auto index = static_cast<size_t>(range.value());
    if (ranges.size() <= index) ranges.resize(index + 1);
    ranges[index] = true;
  };
  moves_.assign(steps.ranges.size(), {});
  for (size_t i = 0; i < initial.size(); ++i) {
    if (keep[i].second == initial[i].second) {
      ++moves_[residents[i].range].fetches;
    } else {
      first_fetches_.push_back(residents[i]);
      mark(initial[i].first, is_fetched_);
    }
  }
  for (const PlannedFetch& fetch : steps.fetches) mark(plan->ranges[fetch.range], is_fetched_);
  for (const PlannedUpdate& update : steps.device_updates) {
    mark(plan->ranges[update.grad()], is_kept_);
  }
  for (const int32_t range : steps.late_gradients) mark(plan->ranges[range], is_kept_);
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
  const auto is_idle = [](const Worker& worker) { return worker.activity == Activity::kIdle; };
  while (!std::ranges::all_of(workers_, is_idle) || under_way_ > 0) mutex_.WaitFor(changed_);
  plan_.reset();
}

void PlanExecutor::AwaitEvictions() {
  MutexLock lock(mutex_);
  while (active() && !OutAtGate()) mutex_.WaitFor(changed_);
}

void PlanExecutor::Pause() {
  paused_.store(true, std::memory_order_release);
  // An eviction that came late would take what is fetched after the update.
  AwaitEvictions();
  residency_.AwaitPlanned();
}

void PlanExecutor::Resume() {
  paused_.store(false, std::memory_order_release);
  residency_.Nudge();
}

void PlanExecutor::AwaitRest() {
  MutexLock lock(mutex_);
  while (active() && !(AtGate(kIn) && OutAtGate() && under_way_ == 0)) {
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
  int64_t first = kNoGate;
  for (const Worker& worker : workers_) first = std::min(first, worker.gate);
  gate_.store(first, std::memory_order_seq_cst);
}

bool PlanExecutor::IsTurn(int32_t range, BoundPlan::Turn turn) const {
  return moves_[range].fetches >= turn.fetches && moves_[range].evictions >= turn.evictions;
}

// Whether the worker does nothing more before the operators, or another worker, go on.
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
      return !IsTurn(worker.turn_range, worker.turn);
    default:
      return false;
  }
}

// Whether nothing more comes to DEVICE unless the operators go on.
bool PlanExecutor::Stuck(bool blocked) const {
  const Activity fetching = workers_[kIn].activity;
  if (fetching == Activity::kPlacing) return blocked && OutAtGate();
  if (fetching == Activity::kTurn) return AtGate(kIn) && OutAtGate();
  return AtGate(kIn);
}

bool PlanExecutor::IsEvicting() const {
  MutexLock lock(mutex_);
  return !OutAtGate();
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

bool PlanExecutor::KeepsGradient(RangeId range) const {
  const auto index = static_cast<size_t>(range.value());
  MutexLock lock(mutex_);
  return index < is_kept_.size() && is_kept_[index];
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
      if (!fetching.store->AwaitsCommit(fetching.chunk)) return StallCause::kNvme;
      return fetching.store->updates().AwaitsGradient(BundleOf(fetching.chunk))
                 ? StallCause::kTransfer
                 : StallCause::kUpdate;
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

bool PlanExecutor::WaitForTurn(size_t worker, int32_t range, BoundPlan::Turn turn) {
  {
    MutexLock lock(mutex_);
    if (IsTurn(range, turn)) return active();
    workers_[worker].activity = Activity::kTurn;
    workers_[worker].turn_range = range;
    workers_[worker].turn = turn;
    changed_.notify_all();
  }
  residency_.Nudge();
  MutexLock lock(mutex_);
  while (active() && !IsTurn(range, turn)) mutex_.WaitFor(changed_);
  workers_[worker].activity = Activity::kWorking;
  return active();
}

bool PlanExecutor::Fetch(const BoundPlan& plan, const PlannedFetch& fetch, int64_t gate,
                         BoundPlan::Turn turn) {
  const RangeId range = plan.ranges[fetch.range];
  if (!WaitForGate(kIn, gate, Activity::kGate) || !WaitForTurn(kIn, fetch.range, turn)) {
    return false;
  }
  for (;;) {
    SetActivity(kIn, Activity::kPlacing);
    const FetchStart start = residency_.BeginFetch(range, fetch.slot, fetch.blank);
    SetActivity(kIn, Activity::kWorking);
    if (start == FetchStart::kStarted) break;
    if (start == FetchStart::kEnded) return false;
    // Non-model data is above what the plan leaves for it, at least until the operators go on.
    const int64_t next = progress_.load(std::memory_order_seq_cst) + 1;
    if (!WaitForGate(kIn, next, Activity::kBudget)) return false;
  }
  if (!fetch.blank && !CopyIn(range)) return false;
  MutexLock lock(mutex_);
  ++moves_[fetch.range].fetches;
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
    // Moments are zeros until the first update.
    if (absl::IsNotFound(host.status()) && IsMoment(what.kind)) host = HostChunk();
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

bool PlanExecutor::Evict(const BoundPlan& plan, size_t worker, const PlannedEviction& eviction,
                         int64_t gate, BoundPlan::Turn turn) {
  const int32_t range = eviction.range;
  if (!WaitForGate(worker, gate, Activity::kGate) || !WaitForTurn(worker, range, turn)) {
    return false;
  }
  for (;;) {
    const int64_t progress = progress_.load(std::memory_order_seq_cst);
    const absl::Status status = residency_.EvictPlanned(plan.ranges[range], eviction.stays);
    if (status.ok()) break;
    if (!absl::IsFailedPrecondition(status)) {
      Abandon(Divergence::kFailed);
      return false;
    }
    // This thread came late, and an operator found the range still there; or somebody keeps it.
    if (!WaitForGate(worker, progress + 1, Activity::kPinned)) return false;
  }
  MutexLock lock(mutex_);
  ++moves_[range].evictions;
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
    const PlannedFetch fetch = {.range = resident.range, .slot = resident.slot};
    if (!Fetch(bound, fetch, 2 * first, {})) return;
  }
  const Plan& plan = bound.plan;
  for (int64_t round = 0; !plan.fetches.empty(); ++round) {
    const int64_t begin = 2 * (first + round * plan.num_positions());
    for (size_t i = 0; i < plan.fetches.size(); ++i) {
      const PlannedFetch& fetch = plan.fetches[i];
      const BoundPlan::Turn turn = TurnIn(round, bound.fetch_turns[i], bound.moves_of[fetch.range]);
      if (!Fetch(bound, fetch, begin + GateOf(fetch), turn)) return;
    }
  }
}

void PlanExecutor::FollowEvictions(const BoundPlan& bound, size_t worker) {
  int64_t first;
  {
    MutexLock lock(mutex_);
    first = first_;
  }
  const Plan& plan = bound.plan;
  const auto is_own = [worker](const PlannedEviction& eviction) {
    return eviction.writes_back == (worker == kBack);
  };
  const bool has_any = std::ranges::any_of(plan.evictions, is_own);
  for (int64_t round = 0; has_any; ++round) {
    const int64_t begin = 2 * (first + round * plan.num_positions());
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const PlannedEviction& eviction = plan.evictions[i];
      if (!is_own(eviction)) continue;
      const BoundPlan::Turn turn =
          TurnIn(round, bound.eviction_turns[i], bound.moves_of[eviction.range]);
      if (!Evict(bound, worker, eviction, begin + GateOf(eviction), turn)) return;
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

void PlanExecutor::RunEvictions(size_t worker) {
  for (int64_t run = 0;;) {
    std::shared_ptr<const BoundPlan> plan;
    {
      MutexLock lock(mutex_);
      while (run_ == run && !quitting_) mutex_.WaitFor(changed_);
      if (run_ == run) return;
      run = run_;
      plan = plan_;
    }
    FollowEvictions(*plan, worker);
    Rest(worker);
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
    residency_.copies().Wait(landing.event);
    landing.host = {};
    if (landing.ends_fetch) residency_.Land();
    MutexLock lock(mutex_);
    --under_way_;
    changed_.notify_all();
  }
}

}  // namespace gemini::client
