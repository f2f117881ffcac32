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
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/plan/plan_binding.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

struct PlannedPhase {
  std::string name;
  std::optional<Trace> trace;
  bool is_foretold = false;  // No round of the trace has run.
  // The room of the foretold trace, for each recorded trace of as many operators.
  std::vector<int64_t> room_bytes;
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
  // Takes a foretold trace, or its room alone if the one that an earlier job kept is of a round
  // like it. The one that is not needed is left in `foretold`.
  void Foretell(Trace& foretold);
  // Makes a recorded round the phase's trace, and leaves the old trace in `recorded`, if it used
  // other tensors or the old one was foretold. Otherwise raises the trace's peaks to the round's. A
  // round that no update ended changes no trace that one ended. Returns whether it replaced the
  // trace. `left_for`: why it left its plan, if it did. Errors: of CheckTrace.
  absl::StatusOr<bool> Keep(Trace& recorded, std::optional<Divergence> left_for);

 private:
  // Gives the trace the room that was foretold, if it has as many operators.
  void AddRoom();
};

// The phases of a job, by name, and the tensors that they are of. A reference to a phase lasts
// until AddTensors.
class PhaseTable {
 public:
  // Adds the tensors of a space, and returns the index of the first. Discards all phases.
  int32_t AddTensors(absl::Span<const TracedTensor> tensors, int32_t space);
  const std::vector<TracedTensor>& tensors() const { return tensors_; }
  // Returns the phase, a new one if there is none of this name.
  PlannedPhase& Get(std::string name);
  // Notes that a training round of the phase follows the last such round.
  void NoteOrder(PlannedPhase& phase);
  // Keeps a trace that a phase is foretold to have, and gives the phase the one that was kept for
  // it, if it is of these tensors.
  void Foretell(Trace trace) { foretold_.push_back(std::move(trace)); }
  void UseForetold(PlannedPhase& phase);

  // NOT_FOUND: the phase has none yet.
  absl::StatusOr<Trace> TraceOf(absl::string_view name) const;
  absl::StatusOr<Plan> PlanOf(absl::string_view name) const;

 private:
  const PlannedPhase* Find(absl::string_view name) const;

  std::vector<TracedTensor> tensors_;
  std::vector<Trace> foretold_;
  std::map<std::string, PlannedPhase> phases_;
  PlannedPhase* trained_ = nullptr;  // Phase of the last training round.
};

}  // namespace gemini::client
