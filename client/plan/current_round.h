// SPDX-License-Identifier: Apache-2.0
// Tracks the round in progress: compares its operators with those of its plan, or, if it follows no
// plan, records them as a trace.
// Position: an operator's number in its round, from 0. Operators are numbered in all rounds
// together, too, in the order in which they begin.
// Order: Open, then Follow if there is a plan; for each operator times().BeginInterval, Leave if
// the plan is to be left, and AddOperator; in the end Close.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/device_budget.h"
#include "client/device/kept_for_update.h"
#include "client/device/residency.h"
#include "client/plan/planned_phase.h"
#include "client/plan/round_times.h"
#include "client/plan/trace_recorder.h"
#include "gemini/plan/trace.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

enum class RoundKind : uint8_t {
  kOperators,
  kEvaluation,   // Ends with the first operator with gradients on.
  kUpdateAlone,  // It has no trace and follows no plan.
};

class CurrentRound {
 public:
  // All arguments outlive this. `timeline` may be null.
  CurrentRound(Residency& residency, DeviceBudget& budget, TimelineShm* timeline)
      : times_(residency, budget, timeline) {}

  // Begins a round of the phase, which must live until the round ends. The round is recorded.
  void Open(PlannedPhase& phase, RoundKind kind);
  // Makes the round follow the phase's plan, from its beginning.
  void Follow();
  // Ends the round as if it had not begun.
  void Withdraw();
  // Withdraws a round whose record is larger than any that a plan is made of, such as that of a
  // program that evaluates and never trains. The next one then lacks its beginning.
  void DropIfTooLong();

  bool is_open() const { return phase_ != nullptr; }
  bool is_empty() const { return position() == 0; }
  bool is_evaluation() const { return is_open() && kind_ == RoundKind::kEvaluation; }
  bool is_following() const { return is_following_; }
  bool lacks_beginning() const { return lacks_beginning_; }
  PlannedPhase& phase() { return *phase_; }
  int32_t position() const { return times_.position(); }  // Of the next operator.
  int64_t next_operator() const { return first_operator_ + position(); }
  // Returns how many rounds were opened, which identifies this one.
  int64_t number() const { return number_; }
  RoundTimes& times() { return times_; }

  // Returns whether the plan's next operator has these uses.
  bool Expects(absl::Span<const TensorUse> uses) const;
  // Returns whether the plan's round ends here, with the update of these tensors.
  bool EndsWith(absl::Span<const int32_t> updated) const;
  // Leaves the plan: from now on the round is recorded. Its operators so far were those of the
  // plan.
  void Leave(Divergence cause);
  void AddOperator(absl::Span<const TensorUse> uses);
  // Marks these uses of operator `op` (counted over all rounds) as written, which showed only at
  // its end.
  void MarkWritten(int64_t op, absl::Span<const TensorUse> uses);
  // Adds a gradient that leaves in the interval of the last operator.
  void AddGradientOut(int32_t tensor);
  // Returns the ranges that the plan keeps on DEVICE for the update, which is the last operator;
  // none if the round has left its plan.
  KeptForUpdate Kept() const;

  // Ends the round. A recorded one may become the phase's trace, of these tensors, unless a step
  // that was not taken ended it. `updated`: the tensors that were changed by the update that ends
  // it; no value if no update ends it. `epoch`: that of the PlanSource. Errors: of CheckTrace; the
  // round has ended all the same.
  absl::Status Close(std::optional<absl::Span<const int32_t>> updated,
                     const std::vector<TracedTensor>& tensors, int64_t epoch);

  // For tests: the round, and those after it, leave their plan at the position. -1: they do not.
  void LeaveAt(int32_t position) { leave_at_ = position; }

 private:
  PlannedPhase* phase_ = nullptr;
  RoundKind kind_ = RoundKind::kOperators;
  bool is_following_ = false;
  bool lacks_beginning_ = false;  // This round, or the next if none is open.
  int64_t number_ = 0;
  int64_t first_operator_ = 0;
  int32_t leave_at_ = -1;
  std::optional<Divergence> left_for_;
  TraceRecorder recorder_;
  RoundTimes times_;
};

}  // namespace gemini::client
