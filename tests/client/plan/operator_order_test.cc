// SPDX-License-Identifier: Apache-2.0
// A job whose operators run long after they were begun, as a GPU's do: every byte is where they
// want it when they run, and none is waited for where a plan is followed.
#include <memory>
#include <optional>
#include <vector>

#include "client/copy/timeline_clock.h"
#include "tests/client/plan/job_operators.h"
#include "tests/client/plan/lazy_operators.h"
#include "tests/client/plan/phase_tracker_fixture.h"

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
  // An operator that takes so long, once it runs.
  void Work(int64_t for_ns) {
    operators_->Run([for_ns] {
      const int64_t end_ns = TimelineNowNs() + for_ns;
      while (TimelineNowNs() < end_ns) {
      }
    });
  }

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

// The thread has begun all of them long before this one runs, and waits in the update.
TEST_F(OperatorOrderTest, TimesAreThoseOfOperatorsAndNotOfTheirThread) {
  LocalPlans plans(kTestChunkBytes);
  OpenLazy(/*device_slots=*/60, &plans);
  ASSERT_NE(operators_, nullptr);
  constexpr int64_t kWorkNs = 200'000'000;
  const auto expect_work = [&](const char* phase, int32_t at, int64_t least_ns, int64_t most_ns) {
    ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf(phase));
    for (int32_t position = 0; position < trace.num_positions(); ++position) {
      const int64_t compute_ns = trace.operators[position].compute_ns;
      EXPECT_GE(compute_ns, position == at ? least_ns : 0) << position;
      EXPECT_LT(compute_ns, position == at ? most_ns : kWorkNs / 2) << position;
    }
  };
  const auto step = [&](int64_t for_ns) {
    job_->ZeroGradients();
    Forward();
    Work(for_ns);
    Backward();
    ASSERT_OK(job_->Update());
  };
  step(kWorkNs);
  expect_work("train", 2 * kLayers - 1, kWorkNs, 3 * kWorkNs / 2);
  step(3 * kWorkNs);  // One that follows the plan replaces the recorded times.
  expect_work("train", 2 * kLayers - 1, 3 * kWorkNs, 4 * kWorkNs);
  EXPECT_EQ(stats().planned_rounds, 1);
  // Nothing waits for operators at these rounds' ends: the next round begins before they are over.
  for (const int64_t times : {1, 3, 3}) {
    job_->phases().BeginPhase("long");
    ASSERT_OK(job_->Operator({Param(0)}));
    Work(times * kWorkNs);
    ASSERT_OK(job_->Operator({Param(1)}));
    job_->phases().EndPhase();
  }
  job_->phases().BeginPhase("another");
  ASSERT_OK(job_->Operator({Param(0)}));
  job_->phases().EndPhase();
  expect_work("long", 0, 3 * kWorkNs, 4 * kWorkNs);
  EXPECT_EQ(stats().planned_rounds, 3);
  late_->Finish();
}

// The round goes on on-line, and its trace with the times that come after it has left its plan.
TEST_F(OperatorOrderTest, TimesOfARoundThatLeftItsPlanAreItsOwn) {
  LocalPlans plans(kTestChunkBytes);
  OpenLazy(/*device_slots=*/60, &plans);
  ASSERT_NE(operators_, nullptr);
  constexpr int64_t kWorkNs = 200'000'000;
  Step();
  Step();
  ASSERT_EQ(stats().planned_rounds, 1);
  job_->ZeroGradients();
  Forward();
  Work(kWorkNs);
  ASSERT_OK(job_->Operator({Param(0)}));  // Not in the trace.
  Backward();
  ASSERT_OK(job_->Update());
  EXPECT_EQ(all_divergences(), 1);
  ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf("train"));
  ASSERT_EQ(trace.num_positions(), 4 * kLayers + 2);
  EXPECT_GE(trace.operators[2 * kLayers - 1].compute_ns, kWorkNs);
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    if (position == 2 * kLayers - 1) continue;
    EXPECT_LT(trace.operators[position].compute_ns, kWorkNs / 2) << position;
  }
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

// What makes room was not written to, so nothing has to leave before.
TEST_F(OperatorOrderTest, OnlineOperatorsDoNotWaitForWhatTheyFetch) {
  OpenLazy(/*device_slots=*/5, nullptr);
  ASSERT_NE(operators_, nullptr);
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) Step();
  EXPECT_EQ(job_->waits_in_operators(), 0);
  EXPECT_GT(session_->residency().stats().fetch_bytes, 3 * 4 * kLayers * kTestChunkBytes);
  late_->Finish();
}

// Without a plan, operators that write parameters between them, and gradients that are read and
// written again.
TEST_F(OperatorOrderTest, OnlineStepsFindTheirBytes) {
  OpenLazy(/*device_slots=*/5, nullptr);
  ASSERT_NE(operators_, nullptr);
  for (int round = 0; round < 4 && !HasFatalFailure(); ++round) StepWithWrites();
  late_->Finish();
}

}  // namespace
}  // namespace gemini::client
