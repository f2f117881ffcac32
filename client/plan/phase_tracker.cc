// SPDX-License-Identifier: Apache-2.0
#include "client/plan/phase_tracker.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gemini::client {

PhaseTracker::PhaseTracker(Residency& residency, DeviceBudget& budget, PlanSource* plans,
                           TimelineShm* timeline)
    : budget_(budget),
      executor_(residency),
      progress_(executor_),
      follower_(executor_),
      requester_(plans, residency),
      round_(residency, budget, timeline) {}

int32_t PhaseTracker::AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors) {
  MutexLock lock(mutex_);
  round_.Withdraw();  // While it is open its plan may be left.
  do {
    requester_.Await(mutex_);
    follower_.Stop(mutex_);
  } while (requester_.is_asking());
  round_.Withdraw();
  round_.times().DropAll();
  const auto space = static_cast<int32_t>(follower_.stores().size());
  const int32_t first = phases_.AddTensors(tensors, space);
  follower_.AddSpace(store);
  names_.AddSpace(store.name());
  return first;
}

void PhaseTracker::Foretell(Trace trace) {
  MutexLock lock(mutex_);
  phases_.Foretell(std::move(trace));
}

int64_t PhaseTracker::BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled) {
  if (between_operators_ && !progress_.any_in_flight()) between_operators_();
  MutexLock lock(mutex_);
  round_.DropIfTooLong();
  if (gradients_enabled && round_.is_evaluation()) CloseRound({});
  // More than once if another thread ends it while this one asks for its plan.
  while (!round_.is_open()) {
    OpenRound(uses, gradients_enabled);
    if (gradients_enabled && round_.is_evaluation()) CloseRound({});
  }
  return Begin(uses);
}

void PhaseTracker::EndOperator(int64_t op, absl::Span<const TensorUse> also_written) {
  if (!also_written.empty()) [[unlikely]] {
    MutexLock lock(mutex_);
    round_.MarkWritten(op, also_written);
  }
  progress_.End(op);
}

void PhaseTracker::GradientLeaves(int32_t tensor) {
  MutexLock lock(mutex_);
  round_.AddGradientOut(tensor);
}

KeptForUpdate PhaseTracker::BeginUpdate(const ChunkStore& store) {
  OperatorPoint begin;
  {
    MutexLock lock(mutex_);
    // Another thread may begin a round wherever this waits.
    while (true) {
      if (round_.is_evaluation() || (round_.is_open() && round_.is_empty())) CloseRound({});
      if (follower_.is_moving()) {
        follower_.AwaitMove(mutex_);  // A plan that begins takes no notice of PauseMoves.
      } else if (!round_.is_open() && follower_.has_begun_any()) {
        // What is updated leaves DEVICE behind the back of a plan that goes on.
        follower_.Stop(mutex_);
      } else {
        break;
      }
    }
    const absl::Span<ChunkStore* const> stores = follower_.stores();
    std::string phase = names_.BeginUpdate(
        static_cast<int32_t>(std::ranges::find(stores, &store) - stores.begin()));
    if (!round_.is_open()) {
      round_.Open(phases_.Get(std::move(phase)), RoundKind::kUpdateAlone);
      phases_.NoteOrder(round_.phase());
    }
    update_ = Begin({});
    begin = round_.times().Now();
  }
  executor_.AwaitEvictions();
  MutexLock lock(mutex_);
  // What it writes on DEVICE is clean then. That is no part of the trace.
  round_.times().LeaveOutSince(std::move(begin));
  return round_.Kept();
}

void PhaseTracker::EndUpdate(absl::Span<const int32_t> updated, OperatorSpan timed) {
  executor_.Resume();
  MutexLock lock(mutex_);
  progress_.End(update_);
  round_.times().LeaveOut(std::move(timed));
  PlannedPhase* const next = round_.is_open() ? round_.phase().next : nullptr;
  CloseRound(updated);
  if (names_.EndUpdate()) FollowAhead(next);
}

void PhaseTracker::BeginPhase(absl::string_view phase) {
  MutexLock lock(mutex_);
  CloseRound({});
  names_.Push(std::string(phase));
}

void PhaseTracker::EndPhase() {
  MutexLock lock(mutex_);
  CloseRound({});
  names_.Pop();
}

PhaseStats PhaseTracker::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}
absl::Status PhaseTracker::plan_status() const {
  MutexLock lock(mutex_);
  return requester_.status();
}
absl::StatusOr<Trace> PhaseTracker::TraceOf(absl::string_view phase) const {
  MutexLock lock(mutex_);
  return phases_.TraceOf(phase);
}
absl::StatusOr<Plan> PhaseTracker::PlanOf(absl::string_view phase) const {
  MutexLock lock(mutex_);
  return phases_.PlanOf(phase);
}
void PhaseTracker::TESTING_ONLY_LeavePlanAt(int32_t position) {
  MutexLock lock(mutex_);
  round_.LeaveAt(position);
}

void PhaseTracker::OpenRound(absl::Span<const TensorUse> uses, bool gradients_enabled) {
  const bool evaluates = !gradients_enabled && std::ranges::any_of(uses, [](const TensorUse& use) {
    return use.kind == ChunkKind::kParam;
  });
  const bool is_named = names_.has_pushed();
  PlannedPhase& phase =
      phases_.Get(names_.OfRound(evaluates, phases_.tensors()[uses[0].tensor].space));
  round_.Open(phase, evaluates && !is_named ? RoundKind::kEvaluation : RoundKind::kOperators);
  if (!evaluates && !is_named) phases_.NoteOrder(phase);
  FollowPlan();
}

void PhaseTracker::FollowPlan() {
  PlannedPhase& phase = round_.phase();
  // A larger budget keeps its old plan until the round's end.
  phase.FitTo(budget_.budget_bytes());
  if (follower_.is_moving()) return;
  // Rounds follow each other without a stop.
  if (follower_.Follows(phase)) {
    round_.Follow();
    return;
  }
  const int64_t number = round_.number();
  const auto is_at_beginning = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return round_.is_open() && round_.is_empty() && round_.number() == number;
  };
  follower_.Stop(mutex_);
  if (!is_at_beginning()) return;
  if (!phase.looked_up && !phase.trace && requester_.may_ask()) {
    phase.looked_up = true;
    requester_.FindTrace(phase, phases_.tensors(), mutex_);
    if (!is_at_beginning()) return;
    phases_.UseForetold(phase);
  }
  if (phase.rounds_to_skip > 0) {
    --phase.rounds_to_skip;
    return;
  }
  if (phase.plan == nullptr && phase.trace && requester_.may_ask()) {
    requester_.AwaitOperators(mutex_);
    round_.times().TakeMeasured();
    requester_.MakePlan(phase, follower_.stores(), budget_.budget_bytes(), mutex_);
    if (!is_at_beginning()) return;
    phase.FitTo(budget_.budget_bytes());
  }
  if (phase.plan == nullptr || follower_.is_moving()) return;
  const int64_t first = round_.next_operator();
  const absl::Status started = follower_.Start(phase, first, mutex_);
  if (!is_at_beginning()) {
    follower_.Leave(Divergence::kOperator);
    if (round_.next_operator() != first) phase.CountBadRound();
  } else if (started.ok()) {
    round_.Follow();
  } else {
    CountDivergence(absl::IsFailedPrecondition(started) ? Divergence::kPinned
                                                        : Divergence::kFailed);
  }
}

void PhaseTracker::FollowAhead(PlannedPhase* next) {
  // With one model alone the plan that is followed goes on.
  if (next == nullptr || follower_.is_moving() || follower_.has_begun(*next)) return;
  const int64_t first = round_.next_operator();
  const auto is_between = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !round_.is_open() && round_.next_operator() == first;
  };
  follower_.Stop(mutex_);
  if (!is_between() || next->plan == nullptr || next->rounds_to_skip > 0) return;
  if (next->plan->plan.device_bytes != budget_.budget_bytes()) return;
  follower_.Start(*next, first, mutex_).IgnoreError();  // The round itself tries again.
  // Another thread has begun a round meanwhile, without it.
  if (!is_between()) {
    follower_.Leave(Divergence::kOperator);
    next->CountBadRound();
  }
}

int64_t PhaseTracker::Begin(absl::Span<const TensorUse> uses) {
  round_.times().BeginInterval();
  if (round_.is_following()) {
    if (!executor_.active()) [[unlikely]] {
      LeavePlan(executor_.cause());
    } else if (!round_.Expects(uses)) [[unlikely]] {
      LeavePlan(Divergence::kOperator);
    }
  }
  const int64_t op = round_.next_operator();
  round_.AddOperator(uses);
  progress_.Begin(op);
  return op;
}

void PhaseTracker::LeavePlan(Divergence cause) {
  follower_.Leave(cause);
  CountDivergence(cause);
  round_.Leave(cause);
}

void PhaseTracker::CountDivergence(Divergence cause) {
  ++stats_.divergences[static_cast<size_t>(cause)];
  follower_.stores()[0]->counters().AddDivergence(cause);
  round_.phase().CountBadRound();
}

void PhaseTracker::CloseRound(std::optional<absl::Span<const int32_t>> updated) {
  if (!round_.is_open()) return;
  // Another thread asks for its plan, and begins another round instead.
  if (round_.is_empty()) return round_.Withdraw();
  // All of the round before, or its times would be nobody's; of this one what is measured by now.
  round_.times().TakeRoundBefore();
  if (round_.is_following()) {
    if (!executor_.active()) {
      LeavePlan(executor_.cause());
    } else if (!round_.EndsWith(updated.value_or(absl::Span<const int32_t>()))) {
      LeavePlan(Divergence::kOperator);
    }
  }
  const bool is_planned = round_.is_following();
  if (round_.lacks_beginning() && !is_planned) return round_.Withdraw();
  ++stats_.rounds;
  stats_.planned_rounds += is_planned ? 1 : 0;
  follower_.stores()[0]->counters().AddRound(is_planned);
  const absl::Status status = round_.Close(updated, phases_.tensors(), requester_.epoch());
  if (!status.ok()) requester_.NoteError(status);
}

}  // namespace gemini::client
