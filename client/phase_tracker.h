// SPDX-License-Identifier: Apache-2.0
// Where the job is in its phase: records each round's trace, follows its plan, and notices when the round
// leaves it. The one place that knows positions.
// Phases: rounds lie between boundaries: the end of an update, BeginPhase and EndPhase. Outside of
//         BeginPhase a round's phase is "train", or "eval" when gradients are off at its first operator;
//         the first operator with gradients on then begins another round.
// Round:  the first of a phase is placed on-line while its trace is recorded; at its end a plan is asked
//         for, and the phase's next round follows it. A round that leaves its plan is counted with the
//         cause and goes on on-line; its trace replaces the phase's if it touched something else, or
//         needed more non-model data.
// Thread: any; one lock, not held while a plan is asked for or chunks move.
// Errors: none. Without a plan the job runs on-line; plan_status says why there is none.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/chunk_store.h"
#include "client/device_budget.h"
#include "client/plan_source.h"
#include "client/residency.h"
#include "gemini/plan.h"
#include "gemini/stall_cause.h"
#include "gemini/trace.h"

namespace gemini::client {

// Totals since the start.
struct PhaseStats {
  int64_t rounds = 0;
  int64_t planned_rounds = 0;  // Followed their plan to the end.
  std::array<int64_t, kNumDivergences> divergences = {};  // By Divergence.
};

class PhaseTracker {
 public:
  // All outlive this. `plans` may be null: everything is placed on-line.
  PhaseTracker(Residency& residency, DeviceBudget& budget, PlanSource* plans);
  ~PhaseTracker();
  PhaseTracker(const PhaseTracker&) = delete;
  PhaseTracker& operator=(const PhaseTracker&) = delete;

  // Adds a space's tensors in the order of its layout; returns the index of the first. Between rounds.
  int32_t AddTensors(ChunkStore& store, absl::Span<const TracedTensor> tensors);

  // An operator asks for these tensors, of which at least one is pinned by nobody. Call before
  // Residency::Pin; EndOperator after its Unpin. O(uses), no system call unless a planned copy waits
  // for this very moment.
  void BeginOperator(absl::Span<const TensorUse> uses, bool gradients_enabled);
  void EndOperator();
  // The gradient of a tensor leaves DEVICE for HOST.
  void GradientLeaves(int32_t tensor);

  // The optimizer step: between the two nothing planned is begun. At EndUpdate the intent is recorded,
  // and the stale DEVICE copies of `updated` are gone; the round ends.
  void BeginUpdate();
  void EndUpdate(absl::Span<const int32_t> updated);

  // Names the rounds until EndPhase; each call begins a round. They nest.
  void BeginPhase(absl::string_view phase);
  void EndPhase();

  PhaseStats stats() const;
  // Why the last plan that was asked for was not given; OK when it was.
  absl::Status plan_status() const;

  // The phase's trace, and the plan that its next round follows: for measurements and tests. NOT_FOUND:
  // none yet.
  absl::StatusOr<Trace> TraceOf(absl::string_view phase) const;
  absl::StatusOr<Plan> PlanOf(absl::string_view phase) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace gemini::client
