// SPDX-License-Identifier: Apache-2.0
// Keeps what a job knows about its phases: the round that was traced, the plan made from it, and
// how well rounds have followed that plan.
// Thread: none of its own; the phase tracker locks.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/plan/plan_binding.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

struct PlannedPhase {
  std::string name;
  std::optional<Trace> trace;
  std::shared_ptr<const BoundPlan> plan;  // Made from the trace; null if still to be requested.
  int64_t averaged_rounds = 0;            // Rounds in the trace's times.
  int64_t epoch = 0;                      // The plan source's when they were begun.
  bool looked_up = false;                 // Whether an earlier job's trace was requested.
  int bad_rounds = 0;                     // In a row.
  int rounds_to_skip = 0;
  int refusals = 0;  // Refusals of its plan, in a row.
  // Phase of the round after the last of this one, without evaluation.
  PlannedPhase* next = nullptr;

  // Discards a plan that was made for another budget.
  void FitTo(int64_t device_bytes);
  // Counts a round that left its plan, or could not begin with it.
  void CountBadRound();
  void CountRefusal();
  // Counts a round that followed the plan to its end. The plan is requested once more when some
  // rounds have been measured, or if gradients left DEVICE at other positions.
  void CountGoodRound(int64_t source_epoch, const std::vector<GradientOut>& gradient_outs);
  // Makes a recorded round the phase's trace, and leaves the old trace in `recorded`, if it used
  // other tensors. Otherwise raises the trace's peaks to the round's. A round that no update ended
  // changes no trace that one ended. Returns whether it replaced the trace. `left_for`: why it left
  // its plan, if it did. Errors: of CheckTrace.
  absl::StatusOr<bool> Keep(Trace& recorded, std::optional<Divergence> left_for);
};

// The phases of a job, by name. A reference lasts until Clear.
class PhaseTable {
 public:
  // Returns the phase, a new one if there is none of this name.
  PlannedPhase& Get(std::string name);
  // Notes that a training round of the phase follows the last such round.
  void NoteOrder(PlannedPhase& phase);
  void Clear();

  // NOT_FOUND: the phase has none yet.
  absl::StatusOr<Trace> TraceOf(absl::string_view name) const;
  absl::StatusOr<Plan> PlanOf(absl::string_view name) const;

 private:
  const PlannedPhase* Find(absl::string_view name) const;

  std::map<std::string, PlannedPhase> phases_;
  PlannedPhase* trained_ = nullptr;  // Phase of the last training round.
};

}  // namespace gemini::client
