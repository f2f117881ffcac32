// SPDX-License-Identifier: Apache-2.0
// A job of layers whose steps are followed by a PhaseTracker.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/client/plan/planned_job.h"

namespace gemini::client {

class PhaseTrackerTest : public SessionFixture {
 protected:
  // A job of `num_layers` layers of two tensors each: one of a chunk, one of two.
  void Open(int num_layers, int64_t device_slots, PlanSource* plans) {
    OpenBelow(num_layers, device_slots, 20 * num_layers + 16, /*nvme_slots=*/0, plans);
  }
  void OpenBelow(int num_layers, int64_t device_slots, int64_t host_slots, int64_t nvme_slots,
                 PlanSource* plans) {
    OpenSession(device_slots, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    num_layers_ = num_layers;
    std::vector<TracedTensor> tensors;
    for (int i = 0; i < num_layers; ++i) {
      tensors.push_back({.size_bytes = chunk_bytes_});
      tensors.push_back({.size_bytes = 2 * chunk_bytes_});
    }
    job_.emplace(*session_, std::move(tensors), plans, host_slots, nvme_slots);
  }
  ~PhaseTrackerTest() override { job_.reset(); }

  static TensorUse Param(int32_t tensor, bool written = false) {
    return {tensor, ChunkKind::kParam, written};
  }
  static TensorUse Grad(int32_t tensor, bool written = false) {
    return {tensor, ChunkKind::kGrad, written};
  }

  void Forward(bool gradients_enabled = true) {
    for (int32_t i = 0; i < num_layers_; ++i) {
      ASSERT_OK(job_->Operator({Param(2 * i)}, gradients_enabled));
      ASSERT_OK(job_->Operator({Param(2 * i + 1)}, gradients_enabled));
    }
  }
  void Backward() {
    for (int32_t i = num_layers_ - 1; i >= 0; --i) {
      ASSERT_OK(job_->Operator({Param(2 * i + 1)}));
      ASSERT_OK(job_->Gradient(2 * i + 1));
      ASSERT_OK(job_->Operator({Param(2 * i)}));
      ASSERT_OK(job_->Gradient(2 * i));
    }
  }
  // A step whose operators write parameters and gradients.
  void StepWithWrites() {
    job_->ZeroGradients();
    Forward();
    for (int32_t tensor = 0; tensor < 2 * num_layers_; tensor += 3) {
      ASSERT_OK(job_->Operator({Param(tensor, /*written=*/true)}));
    }
    Backward();
    for (int32_t tensor = 0; tensor < 2 * num_layers_; tensor += 2) {
      ASSERT_OK(job_->Operator({Grad(tensor, /*written=*/true)}));
    }
    ASSERT_OK(job_->Gradient(0));  // Over a copy on DEVICE, or into HOST.
    ASSERT_OK(job_->Operator({Grad(0)}));
    ASSERT_OK(job_->Update());
  }
  void Step() {
    job_->ZeroGradients();
    Forward();
    Backward();
    if (HasFatalFailure()) return;
    ASSERT_OK(job_->Update());
  }
  // Rounds of an own job that end without a divergence, and whose last ones move the predicted
  // bytes.
  void FollowsExactly(int64_t device_slots, PolicyOptions policy, const CostModel& costs = {}) {
    LocalPlans plans(kTestChunkBytes);
    plans.set_policy(policy);
    plans.set_costs(costs);
    job_.reset();
    session_.reset();
    Open(6, device_slots, &plans);
    if (HasFatalFailure()) return;
    for (int round = 0; round < 5; ++round) {
      Step();
      if (HasFatalFailure()) return;
    }
    EXPECT_OK(job_->phases().plan_status());
    for (int i = 0; i < kNumDivergences; ++i) {
      EXPECT_EQ(divergences(static_cast<Divergence>(i)), 0)
          << DivergenceName(static_cast<Divergence>(i));
    }
    ASSERT_OK_AND_ASSIGN(const Plan plan, job_->phases().PlanOf("train"));
    job_->phases().AwaitPlannedMoves();
    const ResidencyStats before = session_->residency().stats();
    const int64_t updates_before = job_->updates_on_device();
    const int64_t late_before = job_->late_gradients();
    for (int64_t round = 1; round <= 3; ++round) {
      Step();
      if (HasFatalFailure()) return;
      job_->phases().AwaitPlannedMoves();
      const ResidencyStats now = session_->residency().stats();
      EXPECT_EQ(now.fetch_bytes - before.fetch_bytes, round * plan.prediction.fetch_bytes);
      EXPECT_EQ(now.evict_bytes - before.evict_bytes, round * plan.prediction.evict_bytes);
      EXPECT_EQ(now.stall_by_cause_ns[static_cast<size_t>(StallCause::kOnline)],
                before.stall_by_cause_ns[static_cast<size_t>(StallCause::kOnline)]);
    }
    EXPECT_EQ(job_->updates_on_device() - updates_before,
              3 * static_cast<int64_t>(plan.device_updates.size()));
    EXPECT_EQ(job_->late_gradients() - late_before,
              3 * static_cast<int64_t>(plan.late_gradients.size()));
    EXPECT_EQ(stats().planned_rounds, 7);
    EXPECT_EQ(all_divergences(), 0);
    EXPECT_LE(session_->device_budget().peak_bytes(), session_->device_budget().budget_bytes());
  }
  PhaseStats stats() { return job_->phases().stats(); }
  int64_t divergences(Divergence cause) { return stats().divergences[static_cast<size_t>(cause)]; }
  int64_t all_divergences() {
    int64_t sum = 0;
    for (const int64_t count : stats().divergences) sum += count;
    return sum;
  }

  int num_layers_ = 0;
  std::optional<PlannedJob> job_;
};

}  // namespace gemini::client
