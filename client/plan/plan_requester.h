// SPDX-License-Identifier: Apache-2.0
// Requests plans, and the traces of earlier jobs, one at a time and without holding the tracker's
// lock: a plan for a large trace takes half a second, and the server may make other jobs' plans
// before it.
// Asking: the lock is released during a request (client/plan/unlocked_work.h), so other threads'
// operators, updates and rounds go on meanwhile. A request works on copies. Its answer becomes the
// phase's, unless the trace that it is about was replaced meanwhile. While one request is in flight
// nobody begins another.
// Thread: any. `mutex` is the tracker's lock, which guards this; calls that take it release it
// meanwhile.
#pragma once
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/plan/plan_source.h"
#include "client/plan/planned_phase.h"
#include "client/plan/unlocked_work.h"
#include "gemini/plan/trace.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class PlanRequester {
 public:
  // Both outlive this. `plans` may be null: there are no plans then.
  PlanRequester(PlanSource* plans, Residency& residency) : plans_(plans), residency_(residency) {}

  bool may_ask() const { return plans_ != nullptr && !asking_.is_under_way(); }
  bool is_asking() const { return asking_.is_under_way(); }
  int64_t epoch() const { return plans_ == nullptr ? 0 : plans_->epoch(); }
  // Returns the outcome of the last request, or of NoteError since.
  const absl::Status& status() const { return status_; }
  void NoteError(absl::Status error) { status_ = std::move(error); }

  // These three may be called if may_ask(). The phase and what the spans point to must live until
  // they return, and tensors and stores must not change meanwhile.
  // Gives the phase the trace of an earlier job if there is one and it has none.
  void FindTrace(PlannedPhase& phase, absl::Span<const TracedTensor> tensors, Mutex& mutex)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Waits until all operators that the calling thread has begun are over, and so are their times.
  void AwaitOperators(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Gives the phase a plan for its trace.
  void MakePlan(PlannedPhase& phase, absl::Span<ChunkStore* const> stores, int64_t device_bytes,
                Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Waits for the request in flight.
  void Await(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { asking_.Await(mutex); }

 private:
  PlanSource* const plans_;
  Residency& residency_;
  UnlockedWork asking_;
  absl::Status status_;
};

}  // namespace gemini::client
