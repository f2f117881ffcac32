// SPDX-License-Identifier: Apache-2.0
#include "client/plan/phase_tracker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/host/chunk_mover.h"
#include "client/plan/interval_meter.h"
#include "client/plan/plan_binding.h"
#include "client/plan/plan_executor.h"
#include "client/plan/planned_phase.h"
#include "client/plan/trace_recorder.h"
#include "gemini/system/mutex.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// A trace keeps an average of measured times over so many rounds: noise of one round counts little,
// and a change shows after some ten.
constexpr int64_t kAverageRounds = 8;
// The times of a recorded round are those of on-line placement and of cold memory: after so many
// rounds that followed their plan, it is made once more with theirs.
constexpr int64_t kSettledRounds = 3;
// So many rounds of a phase in a row that left their plan are bad luck; then it is planned more
// seldom.
constexpr int kMaxBadRounds = 3;
constexpr int kMaxSkippedRoundsShift = 5;
// More updates of one space in a row count as so many: an adversarial loop makes five or so.
constexpr int kMaxUpdatesInRow = 8;

absl::Status NothingOf(absl::string_view what, absl::string_view phase) {
  return absl::NotFoundError(absl::StrCat("phase ", phase, " has no ", what, " yet"));
}

}  // namespace

class PhaseTracker::State {
 public:
  State(Residency& residency, DeviceBudget& budget, PlanSource* plans, TimelineShm* timeline)
      : residency_(residency),
        budget_(budget),
        plans_(plans),
        executor_(residency),
        meter_(residency.copies(), residency.stalls(), budget, timeline) {}

  int32_t AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors) {
    MutexLock lock(mutex_);
    executor_.Stop();
    Foresee(nullptr);
    running_ = round_phase_ = nullptr;
    before_ = {};
    trained_ = nullptr;
    phases_.clear();
    const auto first = static_cast<int32_t>(tensors_.size());
    tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
    for (size_t i = first; i < tensors_.size(); ++i) {
      tensors_[i].space = static_cast<int32_t>(stores_.size());
    }
    stores_.push_back(&store);
    return first;
  }

  int64_t BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled) {
    if (between_operators_ && in_flight_.load(std::memory_order_acquire) == 0) between_operators_();
    MutexLock lock(mutex_);
    if (round_phase_ != nullptr && ends_with_gradients_ && gradients_enabled) CloseRound({});
    if (round_phase_ == nullptr) OpenRoundOf(uses, gradients_enabled);
    return Begin(uses);
  }

  void EndOperator(int64_t op, absl::Span<const TensorUse> also_written) {
    if (!also_written.empty()) [[unlikely]] {
      MutexLock lock(mutex_);
      if (round_phase_ != nullptr && !following_ && op >= round_begin_) {
        recorder_.MarkWritten(static_cast<int32_t>(op - round_begin_), also_written);
      }
    }
    End(op);
  }

  void GradientLeaves(int32_t tensor) {
    MutexLock lock(mutex_);
    if (round_phase_ != nullptr) recorder_.AddGradientOut(position_ - 1, tensor);
  }

  KeptForUpdate BeginUpdate(const ChunkStore& store) {
    MutexLock lock(mutex_);
    if (round_phase_ != nullptr && ends_with_gradients_) CloseRound({});
    update_space_ = static_cast<int32_t>(std::ranges::find(stores_, &store) - stores_.begin());
    if (round_phase_ == nullptr) OpenUpdateAlone();
    update_ = Begin({});
    // What it writes on DEVICE is clean then. That is no part of the trace.
    CopyEngine& copies = residency_.copies();
    OperatorPoint begin = copies.Now();
    executor_.AwaitEvictions();
    meter_.LeaveOut({std::move(begin), copies.Now()});
    // Only at its end are the plan's ranges what the update needs.
    const bool at_end = following_ && position_ == round_phase_->trace->num_positions();
    return at_end ? round_phase_->plan->kept : KeptForUpdate();
  }

  void PauseMoves() { executor_.Pause(); }

  void EndUpdate(absl::Span<const int32_t> updated, OperatorSpan timed) {
    executor_.Resume();
    End(RunningUpdate());
    MutexLock lock(mutex_);
    meter_.LeaveOut(std::move(timed));
    PlannedPhase* const ended = round_phase_;
    CloseRound(updated);
    if (update_space_ != updated_space_) {
      updates_in_row_ = updated_space_ < 0 ? 0 : 1;
      updated_space_ = update_space_;
    } else if (updates_in_row_ > 0) {
      updates_in_row_ = std::min(updates_in_row_ + 1, kMaxUpdatesInRow);
    }
    // With one model alone the plan that is followed goes on.
    if (updates_in_row_ > 0 && ended != nullptr) FollowAhead(ended->next);
  }

  void BeginPhase(absl::string_view phase) {
    MutexLock lock(mutex_);
    CloseRound({});
    named_.emplace_back(phase);
  }

  void EndPhase() {
    MutexLock lock(mutex_);
    CloseRound({});
    if (!named_.empty()) named_.pop_back();
  }

  void set_between_operators(std::function<void()> look) { between_operators_ = std::move(look); }

  PhaseStats stats() const {
    MutexLock lock(mutex_);
    return stats_;
  }
  absl::Status plan_status() const {
    MutexLock lock(mutex_);
    return plan_status_;
  }
  int64_t RunningUpdate() const {
    MutexLock lock(mutex_);
    return update_;
  }
  const PlannedPhase* Find(absl::string_view phase) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = phases_.find(std::string(phase));
    return found == phases_.end() ? nullptr : &found->second;
  }
  absl::StatusOr<Trace> TraceOf(absl::string_view name) const {
    MutexLock lock(mutex_);
    const PlannedPhase* const phase = Find(name);
    if (phase == nullptr || !phase->trace) return NothingOf("trace", name);
    return *phase->trace;
  }
  absl::StatusOr<Plan> PlanOf(absl::string_view name) const {
    MutexLock lock(mutex_);
    const PlannedPhase* const phase = Find(name);
    if (phase == nullptr || phase->plan == nullptr) return NothingOf("plan", name);
    return phase->plan->plan;
  }
  void AwaitPlannedMoves() { executor_.AwaitRest(); }
  void LeavePlanWhen(std::function<bool(int32_t)> when) {
    MutexLock lock(mutex_);
    leave_when_ = std::move(when);
  }

 private:
  // --- Operators.
  int64_t Begin(absl::Span<const TensorUse> uses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CloseInterval(position_);
    if (following_) {
      if (!executor_.active()) [[unlikely]] {
        LeavePlan(executor_.cause());
      } else if (!Expected(uses) || (leave_when_ && leave_when_(position_))) [[unlikely]] {
        LeavePlan(Divergence::kOperator);
      }
    }
    if (!following_) recorder_.AddOperator(uses);
    ++position_;
    if (in_flight_.fetch_add(1, std::memory_order_acq_rel) == 0) {
      executor_.Progressed(2 * begun_ + 1);
    }
    return begun_++;
  }

  void End(int64_t op) {
    int64_t last = last_ended_.load(std::memory_order_relaxed);
    while (last < op && !last_ended_.compare_exchange_weak(last, op, std::memory_order_acq_rel)) {
    }
    // One inside another, or beside it on another thread: only when all have ended is it certain
    // that those before have.
    if (in_flight_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      executor_.Progressed(2 * last_ended_.load(std::memory_order_acquire) + 2);
    }
  }

  bool Expected(absl::Span<const TensorUse> uses) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Trace& trace = *round_phase_->trace;
    if (position_ >= trace.num_positions()) return false;
    const absl::Span<const TensorUse> expected = trace.uses_of(position_);
    if (expected.size() != uses.size()) return false;
    for (size_t i = 0; i < uses.size(); ++i) {
      if (uses[i].tensor != expected[i].tensor || uses[i].kind != expected[i].kind) return false;
    }
    return true;
  }

  void LeavePlan(Divergence cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    executor_.Abandon(cause);
    Foresee(nullptr);
    CountDivergence(cause);
    left_for_ = cause;
    following_ = false;
    recorder_.BeginWith(*round_phase_->trace, position_);
  }

  void CountDivergence(Divergence cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++stats_.divergences[static_cast<size_t>(cause)];
    if (!stores_.empty()) stores_[0]->counters().AddDivergence(cause);
    PlannedPhase& phase = *round_phase_;
    if (++phase.bad_rounds >= kMaxBadRounds) {
      phase.rounds_to_skip =
          1 << std::min(phase.bad_rounds - kMaxBadRounds, kMaxSkippedRoundsShift);
    }
  }

  // Ends the interval of the operator before, and begins that of the one at `next_position`; -1: of
  // none.
  void CloseInterval(int32_t next_position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t peak_bytes = budget_.TakePeak();
    meter_.Begin(next_position);
    if (position_ > 0) {
      KeepPeak((following_ ? *round_phase_->trace : recorder_.trace()).operators[position_ - 1],
               peak_bytes);
    } else if (next_position < 0 && before_.phase != nullptr) {
      // The last operator's interval ends here.
      KeepPeak(before_.phase->trace->operators.back(), peak_bytes);
    }
    TakeTimes();
  }

  static void KeepPeak(TracedOperator& at, int64_t peak_bytes) {
    at.non_model_peak_bytes = std::max(at.non_model_peak_bytes, peak_bytes);
  }

  // Takes up what is measured by now: of the round under way, or of the one before.
  void TakeTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (const std::optional<IntervalMeter::Interval> interval = meter_.Take()) {
      const int64_t number = interval->number;
      if (round_phase_ != nullptr && number >= first_interval_) {
        const auto position = static_cast<size_t>(number - first_interval_);
        if (following_) {
          Average(round_phase_->trace->operators[position], interval->compute_ns,
                  round_phase_->averaged_rounds + 1);
        } else {
          recorder_.trace().operators[position].compute_ns = interval->compute_ns;
        }
      } else if (before_.phase != nullptr && number >= before_.first_interval &&
                 number < before_.first_interval + before_.num_positions) {
        TracedOperator& at =
            before_.phase->trace->operators[static_cast<size_t>(number - before_.first_interval)];
        if (before_.is_new) {
          at.compute_ns = interval->compute_ns;
        } else {
          Average(at, interval->compute_ns, before_.phase->averaged_rounds);
        }
      }
    }
  }

  // Takes up the time of a round that followed its plan: the `round`th, from 1, whose time replaces
  // that of the recorded one.
  static void Average(TracedOperator& at, int64_t compute_ns, int64_t round) {
    at.compute_ns += (compute_ns - at.compute_ns) / std::clamp<int64_t>(round, 1, kAverageRounds);
  }

  // --- Rounds.
  std::string NameOf(absl::string_view what, int32_t space) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return space == 0 ? std::string(what) : absl::StrCat(what, "-", stores_[space]->name());
  }

  // Opens the round that begins with an operator of these uses.
  void OpenRoundOf(absl::Span<const TensorUse> uses, bool gradients_enabled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool evaluates =
        !gradients_enabled && std::ranges::any_of(uses, [](const TensorUse& use) {
          return use.kind == ChunkKind::kParam;
        });
    std::string name = NameOf(evaluates ? "eval" : "train", tensors_[uses[0].tensor].space);
    if (!evaluates && updates_in_row_ > 0) {
      absl::StrAppend(&name, "-after-", stores_[updated_space_]->name());
      if (updates_in_row_ > 1) absl::StrAppend(&name, "*", updates_in_row_);
    }
    const bool is_named = !named_.empty();
    OpenRound(is_named ? named_.back() : std::move(name), /*is_update=*/false);
    ends_with_gradients_ = evaluates && !is_named;
    if (!evaluates && !is_named) NoteOrder();
  }

  void OpenUpdateAlone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    OpenRound(NameOf("update", update_space_), /*is_update=*/true);
    NoteOrder();
  }

  void NoteOrder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (trained_ != nullptr) trained_->next = round_phase_;
    trained_ = round_phase_;
  }

  // `is_update`: the round is an update alone.
  void OpenRound(std::string name, bool is_update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    position_ = 0;
    CloseInterval(-1);
    first_interval_ = meter_.number() + 1;
    round_phase_ = &phases_[name];
    if (round_phase_->name.empty()) round_phase_->name = std::move(name);
    round_begin_ = begun_;
    recorder_.Begin();
    is_update_alone_ = is_update;
    // What is updated leaves DEVICE behind the back of a plan that goes on.
    if (is_update) LeaveExecutor();
    following_ = !is_update && FollowPlan(*round_phase_);
    left_for_.reset();
  }

  void LeaveExecutor() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    executor_.Stop();
    Foresee(nullptr);
    running_ = nullptr;
  }

  // Has the executor leave the plan of the round that has ended, and begin with that of the one
  // which came behind it the last time: what that wants to find on DEVICE is fetched before it
  // begins. Null: none did.
  void FollowAhead(PlannedPhase* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (next == nullptr || next == running_) return;
    LeaveExecutor();
    if (next->plan == nullptr || next->rounds_to_skip > 0) return;
    if (next->plan->plan.device_bytes != budget_.budget_bytes()) return;
    StartExecutor(*next).IgnoreError();  // The round itself tries again.
  }

  absl::Status StartExecutor(PlannedPhase& phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    GEMINI_RETURN_IF_ERROR(executor_.Start(phase.plan, begun_));
    Foresee(&phase.plan->plan);
    running_ = &phase;
    return absl::OkStatus();
  }

  // Sees to it that the executor follows the phase's plan; false: there is none.
  bool FollowPlan(PlannedPhase& phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A larger budget keeps its old plan until the round's end.
    if (phase.plan != nullptr && phase.plan->plan.device_bytes != budget_.budget_bytes()) {
      phase.plan = nullptr;
    }
    // Rounds follow each other without a stop.
    if (running_ == &phase && phase.plan != nullptr && executor_.active()) return true;
    LeaveExecutor();
    if (plans_ == nullptr) return false;
    if (!std::exchange(phase.looked_up, true)) FindTrace(phase);
    if (phase.rounds_to_skip > 0) {
      --phase.rounds_to_skip;
      return false;
    }
    if (phase.plan == nullptr && phase.trace) AskForPlan(phase);
    if (phase.plan == nullptr) return false;
    if (absl::Status status = StartExecutor(phase); !status.ok()) {
      CountDivergence(absl::IsFailedPrecondition(status) ? Divergence::kPinned
                                                         : Divergence::kFailed);
      return false;
    }
    return true;
  }

  // From the next operator on HOST goes by what the plan foresees there; null: by what was used.
  void Foresee(const Plan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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

  void FindTrace(PlannedPhase& phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<std::optional<Trace>> found = plans_->FindTrace(phase.name, tensors_);
    if (!found.ok()) {
      plan_status_ = found.status();
    } else if (found->has_value() && CheckTrace(**found).ok() && (**found).tensors == tensors_) {
      phase.trace = **std::move(found);
    }
  }

  void AskForPlan(PlannedPhase& phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    meter_.Await(meter_.number());
    TakeTimes();
    absl::StatusOr<Plan> plan = plans_->MakePlan(*phase.trace, budget_.budget_bytes());
    plan_status_ = plan.status();
    if (!plan.ok()) {
      // The same trace is refused again, most likely, and handing it over takes its time.
      phase.rounds_to_skip = 1 << std::min(phase.refusals++, kMaxSkippedRoundsShift);
      return;
    }
    phase.refusals = 0;
    auto bound =
        BindPlan(*std::move(plan), *phase.trace, stores_, residency_, budget_.budget_bytes());
    plan_status_ = bound.status();
    if (bound.ok()) phase.plan = *std::move(bound);
  }

  // `updated`: of an update that ends the round.
  void CloseRound(std::optional<absl::Span<const int32_t>> updated)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (round_phase_ == nullptr) return;
    // All of the round before, or its times would be nobody's; of this one what is measured by now.
    meter_.Await(before_.first_interval + before_.num_positions - 1);
    TakeTimes();
    PlannedPhase& phase = *round_phase_;
    const absl::Span<const int32_t> now_updated = updated.value_or(absl::Span<const int32_t>());
    if (following_) {
      const Trace& trace = *phase.trace;
      if (!executor_.active()) {
        LeavePlan(executor_.cause());
      } else if (position_ != trace.num_positions() ||
                 now_updated != absl::MakeConstSpan(trace.updated)) {
        LeavePlan(Divergence::kOperator);
      }
    }
    const bool followed = following_;
    bool is_new = false;
    if (followed) {
      phase.bad_rounds = 0;
      const int64_t epoch = plans_->epoch();
      const bool is_new_epoch = std::exchange(phase.epoch, epoch) != epoch;
      // What is averaged by now is of before: the next round's times replace it.
      phase.averaged_rounds =
          is_new_epoch ? 0 : std::min(phase.averaged_rounds + 1, kAverageRounds);
      if (phase.averaged_rounds == kSettledRounds) phase.plan = nullptr;
      if (recorder_.trace().gradient_outs != phase.trace->gradient_outs) {
        phase.trace->gradient_outs = recorder_.trace().gradient_outs;
        phase.plan = nullptr;
      }
    } else if (!is_update_alone_ && (!updated || !updated->empty())) {
      is_new = KeepTrace(phase, now_updated);
    }
    ++stats_.rounds;
    stats_.planned_rounds += followed ? 1 : 0;
    if (!stores_.empty()) stores_[0]->counters().AddRound(followed);
    // The interval of its last operator goes on.
    before_ = {.phase = followed || is_new ? &phase : nullptr,
               .first_interval = first_interval_,
               .num_positions = position_,
               .is_new = is_new};
    round_phase_ = nullptr;
    following_ = false;
    ends_with_gradients_ = false;
  }

  // Makes the recorded round the phase's trace, or adds its peaks to that; returns whether it is
  // the phase's now.
  bool KeepTrace(PlannedPhase& phase, absl::Span<const int32_t> updated)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Trace& recorded = recorder_.trace();
    recorded.phase = phase.name;
    recorded.tensors = tensors_;
    recorded.updated.assign(updated.begin(), updated.end());
    // A round that another phase interrupted has no update, and none like it comes again.
    if (phase.trace && phase.trace->ends_with_update() && !recorded.ends_with_update())
      return false;
    if (absl::Status status = CheckTrace(recorded); !status.ok()) {
      plan_status_ = std::move(status);
      return false;
    }
    if (!phase.trace || Fingerprint(recorded) != Fingerprint(*phase.trace)) {
      if (!phase.trace) phase.trace.emplace();
      std::swap(*phase.trace, recorded);
      phase.plan = nullptr;
      phase.averaged_rounds = 0;
      return true;
    }
    for (size_t i = 0; i < recorded.operators.size(); ++i) {
      TracedOperator& kept = phase.trace->operators[i];
      kept.non_model_peak_bytes =
          std::max(kept.non_model_peak_bytes, recorded.operators[i].non_model_peak_bytes);
    }
    if (left_for_ == Divergence::kNonModel || left_for_ == Divergence::kBudget) {
      phase.plan = nullptr;
    }
    return false;
  }

  Residency& residency_;
  DeviceBudget& budget_;
  PlanSource* const plans_;
  PlanExecutor executor_;
  std::function<void()> between_operators_;
  std::atomic<int64_t> last_ended_{-1};  // The last operator that has ended.
  std::atomic<int64_t> in_flight_{0};

  mutable Mutex mutex_;
  std::vector<ChunkStore*> stores_ ABSL_GUARDED_BY(mutex_);  // By space.
  std::vector<TracedTensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ChunkMover>> movers_
      ABSL_GUARDED_BY(mutex_);                                          // By space, once needed.
  std::map<std::string, PlannedPhase> phases_ ABSL_GUARDED_BY(mutex_);  // By name.
  std::vector<std::string> named_ ABSL_GUARDED_BY(mutex_);  // BeginPhase, the innermost last.
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;               // Operators, ever.
  int64_t update_ ABSL_GUARDED_BY(mutex_) = 0;              // The operator that stands for it.
  int32_t update_space_ ABSL_GUARDED_BY(mutex_) = 0;        // In the current or the last update.
  // The space that was updated last, and how often since another was; 0: no other ever was.
  int32_t updated_space_ ABSL_GUARDED_BY(mutex_) = -1;
  int updates_in_row_ ABSL_GUARDED_BY(mutex_) = 0;
  PlannedPhase* trained_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Phase of the last training round.
  // Whose plan the executor follows, or followed.
  PlannedPhase* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // The current round.
  PlannedPhase* round_phase_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Null: none is.
  bool following_ ABSL_GUARDED_BY(mutex_) = false;               // Its plan.
  bool ends_with_gradients_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_update_alone_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t round_begin_ ABSL_GUARDED_BY(mutex_) = 0;  // Its first operator.
  int32_t position_ ABSL_GUARDED_BY(mutex_) = 0;     // Position of the next operator.
  std::optional<Divergence> left_for_ ABSL_GUARDED_BY(mutex_);
  TraceRecorder recorder_ ABSL_GUARDED_BY(mutex_);
  IntervalMeter meter_ ABSL_GUARDED_BY(mutex_);
  int64_t first_interval_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of its first in the meter.
  // The round before, of whose intervals some go on, or are not measured yet: when its times are
  // for the phase's trace.
  struct RoundBefore {
    PlannedPhase* phase = nullptr;
    int64_t first_interval = 0;
    int32_t num_positions = 0;
    bool is_new = false;  // The trace is its own.
  };
  RoundBefore before_ ABSL_GUARDED_BY(mutex_);
  PhaseStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Status plan_status_ ABSL_GUARDED_BY(mutex_);
  std::function<bool(int32_t)> leave_when_ ABSL_GUARDED_BY(mutex_);
};

PhaseTracker::PhaseTracker(Residency& residency, DeviceBudget& budget, PlanSource* plans,
                           TimelineShm* timeline)
    : state_(std::make_unique<State>(residency, budget, plans, timeline)) {}
PhaseTracker::~PhaseTracker() = default;

int32_t PhaseTracker::AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors) {
  return state_->AddTensors(store, tensors);
}
int64_t PhaseTracker::BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled) {
  return state_->BeginOperator(uses, gradients_enabled);
}
void PhaseTracker::EndOperator(int64_t op, absl::Span<const TensorUse> also_written) {
  state_->EndOperator(op, also_written);
}
void PhaseTracker::GradientLeaves(int32_t tensor) { state_->GradientLeaves(tensor); }
KeptForUpdate PhaseTracker::BeginUpdate(const ChunkStore& store) {
  return state_->BeginUpdate(store);
}
void PhaseTracker::PauseMoves() { state_->PauseMoves(); }
void PhaseTracker::EndUpdate(absl::Span<const int32_t> updated, OperatorSpan timed) {
  state_->EndUpdate(updated, std::move(timed));
}
void PhaseTracker::BeginPhase(absl::string_view phase) { state_->BeginPhase(phase); }
void PhaseTracker::EndPhase() { state_->EndPhase(); }
void PhaseTracker::set_between_operators(std::function<void()> look) {
  state_->set_between_operators(std::move(look));
}
PhaseStats PhaseTracker::stats() const { return state_->stats(); }
absl::Status PhaseTracker::plan_status() const { return state_->plan_status(); }
absl::StatusOr<Trace> PhaseTracker::TraceOf(absl::string_view phase) const {
  return state_->TraceOf(phase);
}
absl::StatusOr<Plan> PhaseTracker::PlanOf(absl::string_view phase) const {
  return state_->PlanOf(phase);
}
void PhaseTracker::AwaitPlannedMoves() { state_->AwaitPlannedMoves(); }
void PhaseTracker::TESTING_ONLY_LeavePlanWhen(std::function<bool(int32_t position)> when) {
  state_->LeavePlanWhen(std::move(when));
}

}  // namespace gemini::client
