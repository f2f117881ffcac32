// SPDX-License-Identifier: Apache-2.0
// A training job without Torch, whose tensors name their bytes: every operator checks what it
// reads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/plan/phase_tracker.h"
#include "client/plan/plan_source.h"
#include "client/update/bundle_update.h"
#include "client/update/device_update.h"
#include "client/update/update_queue.h"
#include "gemini/layout.h"
#include "tests/client/plan/job_operators.h"
#include "tests/client/plan/local_plans.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {

class PlannedJob {
 public:
  // Opens a space for the tensors, with slots beside those that it needs, and commits all
  // parameters.
  PlannedJob(Session& session, std::vector<TracedTensor> tensors, PlanSource* plans,
             int64_t host_slots, int64_t nvme_slots);
  ~PlannedJob();

  // From now on its operators are those, and not of the thread that begins them. They outlive it.
  void RunOperatorsOn(JobOperators* operators) { operators_ = operators; }
  // From now on updates may fail: what the calls return says so.
  void MayFail() { may_fail_ = true; }

  // Pins the tensors, compares what is there, writes to those that are to be written.
  absl::Status Operator(const std::vector<TensorUse>& uses, bool gradients_enabled = true);

  // The tensor's gradient is complete and goes to its chunk.
  absl::Status Gradient(int32_t tensor);
  // The gradients are of no use any more: the next ones are another step's.
  void ZeroGradients() { grad_tags_.assign(tensors_.size(), 0); }

  // Begins the update of all trainable tensors, in the order of the layout: what the plan says on
  // DEVICE, and a thread goes on with the rest.
  absl::Status Update();
  absl::Status FinishUpdates() { return updates_->Finish(); }
  // Ranges, ever.
  int64_t updates_on_device() const { return updates_on_device_; }
  int64_t late_gradients() const { return late_gradients_; }
  // How often Operator waited for copies or operators, ever.
  int64_t waits_in_operators() const { return waits_in_operators_; }

  bool trainable(size_t tensor) const { return tensors_[tensor].group == TensorGroup::kTrainable; }
  bool has_gradient(int32_t tensor) const { return grad_tags_[tensor] != 0; }
  const std::vector<TracedTensor>& tensors() const { return tensors_; }
  const Layout& layout() const { return layout_; }
  PhaseTracker& phases() { return *phases_; }
  ChunkStore& store() { return *store_; }
  RangeId RangeOf(const TensorUse& use) const {
    return use.kind == ChunkKind::kParam ? params_[use.tensor] : grads_[use.tensor];
  }

 private:
  uint64_t NewTag() { return ++last_tag_; }
  uint64_t& TagOf(const TensorUse& use) {
    return use.kind == ChunkKind::kParam ? tags_[use.tensor] : grad_tags_[use.tensor];
  }
  // What lies in the bundle, one tensor after the other.
  std::vector<TensorPiece> Pieces(BundleId bundle) const;
  // `by`: who reads or writes the chunk, on DEVICE or in HOST.
  void FillParams(BundleId bundle, std::byte* chunk, JobOperators& by);
  void CheckMoments(BundleId bundle, ChunkKind kind, const std::byte* chunk, JobOperators& by);
  void FillMoments(BundleId bundle, ChunkKind kind, std::byte* chunk, JobOperators& by);
  void CheckGradients(BundleId bundle, const std::byte* chunk, JobOperators& by);
  absl::StatusOr<bool> UpdateInHost(BundleId bundle);
  void UpdateOnDevice(const BundleInPlace& bundle);
  // Parameter, moments and gradient of a trainable tensor.
  std::vector<RangeId> RangesOf(size_t tensor) const;

  Session& session_;
  HostOperators host_;
  JobOperators* operators_ = &host_;
  std::deque<PendingWrite> gradient_writes_;  // Under way, at most kGradientsUnderWay.
  const std::vector<TracedTensor> tensors_;
  Layout layout_;
  ChunkStore* store_ = nullptr;
  std::vector<RangeId> params_, grads_;     // By tensor.
  std::vector<RangeId> moments_;            // Two a trainable tensor.
  std::vector<uint64_t> tags_, grad_tags_;  // grad_tags_: 0 before the first gradient.
  // Of the update under way: what it finds.
  std::vector<uint64_t> old_tags_, old_grad_tags_;
  int64_t old_moments_ = 0;
  int64_t moments_step_ = 0;  // The last successful step.
  int64_t updates_on_device_ = 0;
  int64_t late_gradients_ = 0;
  int64_t waits_in_operators_ = 0;
  uint64_t last_tag_ = 0;
  int64_t step_ = 0;
  std::atomic<bool> may_fail_ = false;
  std::unique_ptr<UpdateQueue> updates_;
  std::unique_ptr<PhaseTracker> phases_;
};

}  // namespace gemini::client
