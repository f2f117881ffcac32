// SPDX-License-Identifier: Apache-2.0
// A job whose operators run long after they were begun, as a GPU's do: every byte is where they want it when they run,
// and none is waited for where a plan is followed.
#include <memory>
#include <optional>
#include <vector>

#include "tests/client/job_operators.h"
#include "tests/client/lazy_operators.h"
#include "tests/client/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

constexpr int kLayers = 6;

class OperatorOrderTest : public PhaseTrackerTest {
 protected:
  OperatorOrderTest() {
    make_copies_ = [this](TimelineShm* timeline) {
      auto operators = std::make_unique<LazyOperators>(timeline);
      operators_ = operators.get();
      return operators;
    };
  }
  void OpenLazy(int64_t device_slots, PlanSource* plans) {
    Open(kLayers, device_slots, plans);
    if (HasFatalFailure()) return;
    late_.emplace(*operators_);
    job_->RunOperatorsOn(&*late_);
  }

  ~OperatorOrderTest() override {
    job_.reset();
    if (late_) late_->Finish();  // While there is what they read and write.
  }

  LazyOperators* operators_ = nullptr;
  std::optional<LateHostOperators> late_;
};

TEST_F(OperatorOrderTest, PlannedStepsFindTheirBytesAndWaitForNoOperator) {
  LocalPlans plans(kTestChunkBytes);
  OpenLazy(/*device_slots=*/7, &plans);
  ASSERT_NE(operators_, nullptr);
  for (int round = 0; round < 2; ++round) Step();  // Traced, and planned.
  const int64_t planned_before = stats().planned_rounds;
  const int64_t waits_before = job_->waits_in_operators();
  for (int round = 0; round < 6; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(stats().planned_rounds - planned_before, 6);
  EXPECT_EQ(all_divergences(), 0);
  EXPECT_EQ(job_->waits_in_operators() - waits_before, 0);
  EXPECT_GT(session_->residency().stats().fetch_bytes, 0);
  late_->Finish();
}

// Gradients in the room that the plan keeps, updates where they are.
TEST_F(OperatorOrderTest, UpdatesOnDeviceFindTheirBytes) {
  LocalPlans plans(kTestChunkBytes);
  plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.2});
  OpenLazy(/*device_slots=*/30, &plans);
  ASSERT_NE(operators_, nullptr);
  for (int round = 0; round < 8; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(job_->updates_on_device(), 0);
  late_->Finish();
}

// Without a plan, operators that write parameters between them, and gradients that are read and written again.
TEST_F(OperatorOrderTest, OnlineStepsFindTheirBytes) {
  OpenLazy(/*device_slots=*/5, nullptr);
  ASSERT_NE(operators_, nullptr);
  for (int round = 0; round < 4 && !HasFatalFailure(); ++round) StepWithWrites();
  late_->Finish();
}

}  // namespace
}  // namespace gemini::client
