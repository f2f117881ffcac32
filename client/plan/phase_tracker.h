// SPDX-License-Identifier: Apache-2.0
// Where the job is in its phase: records each round's trace, follows its plan, and notices when the
// round leaves it. The one place that knows positions.
// Phases: rounds lie between boundaries: the end of an update, BeginPhase and EndPhase. Outside of
//         BeginPhase a round's phase is "train", or "eval" when its first operator uses parameters
//         with gradients off; the first operator with gradients on then begins another round.
//         Rounds that begin with a tensor of another space than the first have that space's name
//         behind.
// Models: loops that update several spaces take turns that are the same each time, so a training
//         round is also named for the updates before it: once two spaces were updated,
//         "-after-SPACE" says which was last, and "-after-SPACE*3" that it was the last three
//         times. This tells the two rounds of an adversarial loop apart, which both begin with the
//         generator, and those of a critic that is updated up to eight times for one of the
//         generator. A loop without such a rhythm names its rounds with BeginPhase. An update that
//         comes right behind another is a round of its own, of phase "update": nothing is placed in
//         it, so it has no trace and follows no plan.
// Round:  the first of a phase is placed on-line while its trace is recorded, unless one is kept
//         from an earlier job. When the next one begins a plan is asked for, and followed; and once
//         more a few rounds later, with their times. A round that leaves
//         its plan is counted with the cause and goes on on-line; its trace replaces the phase's if
//         it touched something else, or its peaks join it if non-model data took the plan's room. A
//         phase whose rounds leave their plans again and again is planned more and more seldom.
// Times:  of what operators run on (ADR 0027): on a GPU they come later, the last of a round with
//         the next one.
// Thread: any; one lock. Held while a plan is asked for, when the first operator of a round begins,
//         which waits for the times of all before; and at a round's end, which waits for those of
//         the round before it.
// Errors: none. Without a plan the job runs on-line; plan_status says why there is none.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/copy/measured_spans.h"
#include "client/device/device_budget.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/plan/plan_binding.h"
#include "client/plan/plan_source.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

// Totals since the start.
struct PhaseStats {
  int64_t rounds = 0;
  int64_t planned_rounds = 0;                             // Followed their plan to the end.
  std::array<int64_t, kNumDivergences> divergences = {};  // By Divergence.
};

class PhaseTracker {
 public:
  // All outlive this. `plans` may be null: everything is placed on-line. `timeline` gets the
  // operators of all rounds, each when its interval has ended; it may be null.
  PhaseTracker(Residency& residency, DeviceBudget& budget, PlanSource* plans,
               TimelineShm* timeline = nullptr);
  // What was begun lands first.
  ~PhaseTracker();
  PhaseTracker(const PhaseTracker&) = delete;
  PhaseTracker& operator=(const PhaseTracker&) = delete;

  // Adds a space's tensors in the order of its layout; returns the index of the first. Their
  // `space` is set here. Between rounds; traces and plans begin anew.
  int32_t AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors);

  // An operator asks for these tensors, of which at least one is pinned by nobody. Call before
  // Residency::Pin, and EndOperator with the result after its Unpin; `also_written`: of its uses,
  // those that showed only now to be written. O(uses), and on a CPU neither a system call nor an
  // allocation in a round like the one before, unless a planned copy waits for this very moment.
  int64_t BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled);
  void EndOperator(int64_t op, absl::Span<const TensorUse> also_written = {});
  // The gradient of a tensor is complete, and leaves DEVICE for HOST or goes into its chunk on
  // DEVICE.
  void GradientLeaves(int32_t tensor);

  // The optimizer step of the space of `store`, an operator of its own. BeginUpdate says what the
  // plan has on DEVICE for it, or on its way, nothing when the round has left it. Between
  // PauseMoves, which waits for those under way, and EndUpdate no planned copy reads a chunk in
  // HOST. At EndUpdate the intent is recorded, the DEVICE copies of what is updated in HOST are
  // gone, and the round ends. `updated`: all tensors; empty when the step was not taken. `timed`:
  // updates on DEVICE and trust ratios, whose time is no part of the trace, for plans time them.
  KeptForUpdate BeginUpdate(const ChunkStore& store);
  void PauseMoves();
  void EndUpdate(absl::Span<const int32_t> updated, OperatorSpan timed = {});

  // Names the rounds until EndPhase; each call begins a round. They nest.
  void BeginPhase(absl::string_view phase);
  void EndPhase();

  // Called when no operator runs and before the next one begins: a cheap look at what may have
  // changed, such as the budget. Before the first operator.
  void set_between_operators(std::function<void()> look);

  PhaseStats stats() const;
  // Why the last plan that was asked for was not given; OK when it was.
  absl::Status plan_status() const;
  // The phase's trace, and the plan that its next round follows: for measurements and tests.
  // NOT_FOUND: none yet.
  absl::StatusOr<Trace> TraceOf(absl::string_view phase) const;
  absl::StatusOr<Plan> PlanOf(absl::string_view phase) const;

  // Blocks until nothing planned is under way that does not wait for operators. For measurements
  // and tests, which count bytes.
  void AwaitPlannedMoves();
  // Leaves the plan at an operator for which this returns true. Between rounds.
  void TESTING_ONLY_LeavePlanWhen(std::function<bool(int32_t position)> when);

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace gemini::client
