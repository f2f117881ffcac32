// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_requester.h"

#include <optional>
#include <string>
#include <utility>

#include "client/plan/plan_binding.h"

namespace gemini::client {

void PlanRequester::FindTrace(PlannedPhase& phase, absl::Span<const TracedTensor> tensors,
                              Mutex& mutex) {
  const std::string name = phase.name;
  const std::vector<TracedTensor> wanted(tensors.begin(), tensors.end());
  absl::StatusOr<std::optional<Trace>> found;
  {
    const UnlockedWork::Scope scope(asking_, mutex);
    found = plans_->FindTrace(name, wanted);
    if (found.ok() && found->has_value() &&
        (!CheckTrace(**found).ok() || (**found).tensors != wanted)) {
      found->reset();
    }
  }
  if (!found.ok()) status_ = found.status();
  if (found.ok() && !phase.trace) phase.trace = *std::move(found);
}

void PlanRequester::AwaitOperators(Mutex& mutex) {
  const UnlockedWork::Scope scope(asking_, mutex);
  CopyEngine& clock = residency_.copies();
  clock.AwaitPoint(clock.Now());
}

void PlanRequester::MakePlan(PlannedPhase& phase, absl::Span<ChunkStore* const> stores,
                             int64_t device_bytes, Mutex& mutex) {
  const Trace trace = *phase.trace;
  const bool is_foretold = phase.is_foretold;
  bool is_refused = false;
  absl::StatusOr<std::shared_ptr<const BoundPlan>> bound;
  {
    const UnlockedWork::Scope scope(asking_, mutex);
    absl::StatusOr<Plan> plan = plans_->MakePlan(trace, device_bytes);
    is_refused = !plan.ok();
    if (is_refused) {
      bound = plan.status();
    } else {
      bound = BindPlan(*std::move(plan), trace, stores, residency_, device_bytes);
    }
  }
  status_ = bound.status();
  if (is_refused && is_foretold) {
    // It may need more than the round does, which is recorded instead, unless another thread's was.
    if (phase.is_foretold) phase.trace.reset();
    phase.is_foretold = false;
    return;
  }
  if (is_refused) {
    phase.CountRefusal();
    return;
  }
  phase.refusals = 0;
  // Another thread may have ended a round of other operators.
  if (bound.ok() && (**bound).plan.fingerprint == Fingerprint(*phase.trace)) {
    phase.plan = *std::move(bound);
  }
}

}  // namespace gemini::client
