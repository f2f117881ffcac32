// SPDX-License-Identifier: Apache-2.0
// Follows where the job is in its phase. A round is one pass through the phase, such as a training
// step. The tracker records a round as a trace or makes it follow the phase's plan, and notices
// when it leaves the plan. It is the only part that knows positions.
// Phases: a round ends at the end of an update, at BeginPhase and at EndPhase. Where BeginPhase has
// not named one, a round's phase is "train", or "eval" if its first operator uses parameters with
// gradients off; the first operator with gradients on then begins another round. If a round begins
// with a tensor of another space than the first, that space's name is appended.
// Models: a loop that updates several spaces repeats the same sequence of updates. So a training
// round is also named for the updates before it: once two spaces were updated, "-after-SPACE" says
// which was last, and "-after-SPACE*3" that it was the last three times. This distinguishes the two
// rounds of an adversarial loop, which both begin with the generator, and those of a critic that is
// updated up to eight times for one of the generator. A loop without such a rhythm names its rounds
// with BeginPhase. An update directly after another is a round of its own, of phase "update".
// Such a round places nothing, so it has no trace and follows no plan.
// Round: the first round of a phase is placed on-line while its trace is recorded, unless a trace
// is kept from an earlier job or the round is foretold. When the next round begins, a plan is
// requested and followed. A few rounds later the plan is requested once more, with the times of
// these rounds. A round that leaves its plan is counted with the cause and continues on-line. Its
// trace replaces the phase's if it touched something else; its peaks join the phase's trace if
// non-model data took the plan's room. A phase whose rounds leave their plans again and again is
// planned ever more rarely.
// Asking: the first operator of a round waits for its plan, and no lock is held meanwhile. If
// another thread begins an operator meanwhile, the round is placed on-line to its end, and the plan
// is for the phase's next round. An update that ends the round before it has an operator withdraws
// it, and so do BeginPhase and EndPhase: the operator that asked begins another. One thread at a
// time asks, or replaces one plan by another; a round that begins meanwhile and would do so is
// placed on-line (ADR 0045).
// Thread: any; one lock. It is not held while a plan is requested, nor while one plan replaces
// another, which waits for copies under way (client/plan/unlocked_work.h). On a GPU it is held at a
// round's end until the times of the round before it are known, which are over by then but for the
// last operators.
// Errors: none. Without a plan the job runs on-line; plan_status says why there is none.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/copy/measured_spans.h"
#include "client/device/device_budget.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/plan/current_round.h"
#include "client/plan/operator_progress.h"
#include "client/plan/plan_executor.h"
#include "client/plan/plan_follower.h"
#include "client/plan/plan_requester.h"
#include "client/plan/plan_source.h"
#include "client/plan/planned_phase.h"
#include "client/plan/round_names.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

// Totals since the start.
struct PhaseStats {
  int64_t rounds = 0;
  int64_t planned_rounds = 0;  // Rounds that followed their plan to the end.
  std::array<int64_t, kNumDivergences> divergences = {};  // By Divergence.
};

class PhaseTracker {
 public:
  // All arguments outlive this. `plans` may be null: everything is then placed on-line. `timeline`
  // gets the operators of all rounds, each when its interval has ended; it may be null.
  PhaseTracker(Residency& residency, DeviceBudget& budget, PlanSource* plans,
               TimelineShm* timeline = nullptr);
  // Waits until the planned moves in flight have ended.
  ~PhaseTracker() = default;
  PhaseTracker(const PhaseTracker&) = delete;
  PhaseTracker& operator=(const PhaseTracker&) = delete;

  // Adds a space's tensors in the order of its layout and returns the index of the first. Sets
  // their `space`. Call it between rounds; all traces and plans are discarded. Waits for a request
  // that another thread makes, and for the copies of a plan that is left.
  int32_t AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors);

  // Gives the trace that the first round of its phase is expected to leave. That round follows a
  // plan of it, unless an earlier job kept the trace of a round like it. What rounds measure then
  // takes its place, but for its room (Trace::room_bytes), and if no plan fits, the round is
  // recorded. It counts for nothing if its tensors are not all that were added, or where no plans
  // are made. Call it between rounds.
  void Foretell(Trace trace);

  // Begins an operator that uses these tensors, of which at least one is not pinned. Call it before
  // Residency::Pin, and EndOperator with the result after its Unpin. `also_written`: those of its
  // uses that turned out at its end to be writes. O(uses). On a CPU it makes neither a system call
  // nor an allocation in a round like the one before, unless a planned move waits for this very
  // moment.
  int64_t BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled);
  void EndOperator(int64_t op, absl::Span<const TensorUse> also_written = {});
  // Records that the gradient of a tensor is complete and is written to its chunk, in HOST or on
  // DEVICE.
  void GradientLeaves(int32_t tensor);

  // Begin and end the optimizer step of the space of `store`, which counts as an operator.
  // BeginUpdate returns the ranges that the plan keeps on DEVICE for it, some of them in flight,
  // and none if the round has left the plan. PauseMoves waits for planned moves that have begun;
  // from then to EndUpdate no fetch begins. Call EndUpdate when the intent is recorded and the
  // DEVICE copies of what is updated in HOST are dropped; it ends the round. `updated`: all tensors
  // that are updated; empty if the step was not taken. `timed`: the span of updates on DEVICE and
  // trust ratios. Plans compute their time, so it is left out of the trace.
  KeptForUpdate BeginUpdate(const ChunkStore& store);
  void PauseMoves() { executor_.Pause(); }
  void EndUpdate(absl::Span<const int32_t> updated, OperatorSpan timed = {});

  // BeginPhase names the rounds until EndPhase; each call begins a round. Phases nest.
  void BeginPhase(absl::string_view phase);
  void EndPhase();

  // Sets a function that is called when no operator runs and before the next one begins. It is a
  // cheap check for changes, such as the budget's. Set it before the first operator.
  void set_between_operators(std::function<void()> look) { between_operators_ = std::move(look); }

  PhaseStats stats() const;
  // Returns why the last requested plan was not given, or OK if it was.
  absl::Status plan_status() const;
  // Return the phase's trace, and the plan that its next round follows, for measurements and tests.
  // NOT_FOUND: there is none yet.
  absl::StatusOr<Trace> TraceOf(absl::string_view phase) const;
  absl::StatusOr<Plan> PlanOf(absl::string_view phase) const;

  // Blocks until no planned move is in flight except those that wait for operators. For
  // measurements and tests, which count bytes.
  void AwaitPlannedMoves() { executor_.AwaitRest(); }
  // Rounds leave their plan at the operator of this position. -1: they do not.
  void TESTING_ONLY_LeavePlanAt(int32_t position);

 private:
  // Opens the round that begins with an operator of these uses. It may end before this returns.
  void OpenRound(absl::Span<const TensorUse> uses, bool gradients_enabled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the round follow its phase's plan, if there is one or the plan source gives one. Releases
  // the lock during a request, and while it leaves one plan and begins another.
  void FollowPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When a round has ended: begins the plan of the phase whose round is expected next, so that what
  // that wants to find on DEVICE is fetched before it begins. The phase may be null: none is.
  // Releases the lock meanwhile.
  void FollowAhead(PlannedPhase* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins an operator in the round, and returns its number.
  int64_t Begin(absl::Span<const TensorUse> uses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeavePlan(Divergence cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountDivergence(Divergence cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the round if one is open. `updated`: by the update that ends it, if one does.
  void CloseRound(std::optional<absl::Span<const int32_t>> updated)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceBudget& budget_;
  std::function<void()> between_operators_;
  PlanExecutor executor_;  // `follower_` starts and stops it.
  OperatorProgress progress_;

  mutable Mutex mutex_;
  PlanFollower follower_ ABSL_GUARDED_BY(mutex_);
  PlanRequester requester_ ABSL_GUARDED_BY(mutex_);
  CurrentRound round_ ABSL_GUARDED_BY(mutex_);
  RoundNames names_ ABSL_GUARDED_BY(mutex_);
  PhaseTable phases_ ABSL_GUARDED_BY(mutex_);
  int64_t update_ ABSL_GUARDED_BY(mutex_) = 0;  // The operator that stands for it.
  PhaseStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::client
