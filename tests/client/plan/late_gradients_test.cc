// SPDX-License-Identifier: Apache-2.0
// Rounds whose plan leaves gradients on DEVICE beyond the intent (docs/adr/0010): PlannedJob
// compares every gradient that an update reads with the one that was written.
#include <gtest/gtest.h>

#include <vector>

#include "tests/client/plan/phase_tracker_fixture.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

class LateGradientsTest : public PhaseTrackerTest {
 protected:
  // A link beside which nothing else counts: 20 ms a chunk, for the planner alone.
  static CostModel SlowLink() {
    CostModel costs;
    costs.host_to_device = costs.device_to_host = 200e3;
    costs.copy_latency_ns = 0;
    return costs;
  }

  // A job of six layers that follows a plan with late gradients.
  void OpenWithLate(int64_t device_slots) {
    plans_.set_costs(SlowLink());
    Open(6, device_slots, &plans_);
    for (int round = 0; round < 3 && !HasFatalFailure(); ++round) Step();
    if (HasFatalFailure()) return;
    ASSERT_GT(job_->late_gradients(), 0);
  }
  std::vector<BundleId> LateBundles() {
    std::vector<BundleId> bundles;
    const Plan plan = *job_->phases().PlanOf("train");
    for (const int32_t range : plan.late_gradients) bundles.push_back(plan.ranges[range].first);
    return bundles;
  }

  LocalPlans plans_{kTestChunkBytes};
};

TEST_F(LateGradientsTest, PlannedRoundsMoveExactlyThePredictedBytes) {
  for (const int64_t device_slots : {16, 18, 20, 24}) {
    SCOPED_TRACE(device_slots);
    FollowsExactly(device_slots, {}, SlowLink());
    if (HasFatalFailure()) return;
    EXPECT_GT(job_->late_gradients(), 0);
  }
}

// Right behind the update, and later: who brings them is not the plan.
TEST_F(LateGradientsTest, ARoundThatLeavesItsPlanFindsThem) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  for (const int32_t leave : {0, -1, 1, -1, 5, -1, 0, -1, -1}) {
    job_->phases().TESTING_ONLY_LeavePlanAt(leave);
    Step();
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(divergences(Divergence::kOperator), 4);
  ASSERT_OK(job_->FinishUpdates());
}

TEST_F(LateGradientsTest, AnotherPhaseBehindTheUpdateFindsThem) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 4; ++round) {
    Step();
    if (HasFatalFailure()) return;
    Forward(/*gradients_enabled=*/false);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(all_divergences(), 0);
  ASSERT_OK(job_->FinishUpdates());
}

TEST_F(LateGradientsTest, WithoutAnotherOperatorTheUpdateEndsAllTheSame) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  ASSERT_OK(job_->FinishUpdates());
  for (const BundleId bundle : LateBundles()) {
    EXPECT_EQ(job_->store().CommittedStep(bundle), 3);
    EXPECT_FALSE(job_->store().updates().AwaitsGradient(bundle));
  }
}

// The next step's comes while the update still wants the last one's.
TEST_F(LateGradientsTest, GradHeldUntilCommit) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  for (int32_t i = 0; i < num_layers_; ++i) {
    for (const int32_t tensor : {2 * i, 2 * i + 1}) {
      ASSERT_OK(job_->Gradient(tensor));
      const BundleId bundle = job_->layout().place(tensor).first_bundle;
      EXPECT_EQ(job_->store().CommittedStep(bundle), 3) << tensor;
    }
  }
  ASSERT_OK(job_->Operator({Param(0)}));
  ASSERT_OK(job_->Update());
  ASSERT_OK(job_->FinishUpdates());
}

// The update is of the gradients that its norm was taken of.
TEST_F(LateGradientsTest, WhoPinsAGradientBehindTheStepWaitsForItsUpdate) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  const std::vector<BundleId> late = LateBundles();
  for (int64_t step = 4; step <= 8; ++step) {
    Step();
    if (HasFatalFailure()) return;
    for (const BundleId bundle : late) {
      for (int32_t tensor = 0; tensor < 2 * num_layers_; ++tensor) {
        if (job_->layout().place(tensor).first_bundle != bundle) continue;
        ASSERT_OK(job_->Operator({Grad(tensor, /*written=*/true)}));
        EXPECT_EQ(job_->store().CommittedStep(bundle), step);
      }
    }
  }
  ASSERT_OK(job_->FinishUpdates());
}

// A smaller budget comes while they are on DEVICE.
TEST_F(LateGradientsTest, ASmallerBudgetBehindTheUpdateFindsThem) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  const int64_t budget_bytes = session_->device_budget().budget_bytes();
  for (const int64_t bytes : {budget_bytes - 6 * kTestChunkBytes, budget_bytes}) {
    ASSERT_OK(session_->residency().SetBudget(bytes));
    for (int round = 0; round < 3; ++round) {
      Step();
      if (HasFatalFailure()) return;
    }
  }
  ASSERT_OK(job_->FinishUpdates());
}

// Non-model data takes all room at once.
TEST_F(LateGradientsTest, NonModelDataBehindTheUpdatePushesThemOut) {
  OpenWithLate(16);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(session_->residency().MakeRoom(session_->device_budget().budget_bytes()));
    Step();
    if (HasFatalFailure()) return;
  }
  ASSERT_OK(job_->FinishUpdates());
}

}  // namespace
}  // namespace gemini::client
