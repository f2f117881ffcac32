// SPDX-License-Identifier: Apache-2.0
// What is not planned: numbers at the ends of their fields, costs of no machine, traces of too many
// steps, and plans that somebody interrupts.
#include <cstdint>
#include <limits>

#include "gemini/system/monotonic_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Plan> PlanFor(const RangeTrace& trace, int64_t device_bytes,
                             const CostModel& costs = {}) {
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = costs, .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = device_bytes;
  inputs.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  return MakePlan(inputs);
}

// One frozen tensor of two chunks.
Trace TwoChunks(int64_t non_model_peak_bytes) {
  Trace trace;
  trace.phase = "eval";
  trace.tensors = {{2 * kTestChunkBytes, TensorGroup::kFrozen, 0}};
  trace.operators = {{0, 1, 0, non_model_peak_bytes}};
  trace.uses = {{.tensor = 0}};
  return trace;
}

TEST(PlannerLimitsTest, NonModelDataAtTheEndOfItsNumbersLeavesNoRoomAndOverflowsNothing) {
  EXPECT_THAT(PackTrace(TwoChunks(std::numeric_limits<int64_t>::max()), kTestChunkBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("non-model data")));
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace,
                       PackTrace(TwoChunks(int64_t{1} << 60), kTestChunkBytes));
  for (const int64_t budget : {int64_t{0}, kTestChunkBytes, int64_t{1} << 60}) {
    EXPECT_THAT(PlanFor(trace, budget),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("raise --device-memory")));
  }
  EXPECT_OK(PlanFor(trace, (int64_t{1} << 60) + 2 * kTestChunkBytes).status());
}

TEST(PlannerLimitsTest, CostsOfNoMachineAreRefused) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(TwoChunks(0), kTestChunkBytes));
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const double rate : {0.0, -1.0, 1e-300, 1e300, kNaN}) {
    EXPECT_THAT(PlanFor(trace, int64_t{1} << 20, {.host_to_device = rate}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a rate of")))
        << rate;
  }
  EXPECT_THAT(PlanFor(trace, int64_t{1} << 20, {.copy_latency_ns = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 ns")));
  ASSERT_OK_AND_ASSIGN(const RangeTrace large, PackTrace(TwoChunks(0), int64_t{1} << 40));
  EXPECT_THAT(PlanFor(large, int64_t{1} << 42, {.nvme_read = 1e3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("held back too far")));
}

TEST(PlannerLimitsTest, ATraceOfTooManyStepsIsRefusedBeforeAnythingIsPlayed) {
  Trace trace = TwoChunks(0);
  trace.tensors[0].size_bytes = 4'000 * kTestChunkBytes;
  for (int32_t i = 1; i < 2'000; ++i) {
    trace.operators.push_back({i, 1, 0, 0});
    trace.uses.push_back({.tensor = 0});
  }
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kTestChunkBytes));
  EXPECT_THAT(PlanFor(packed, int64_t{1} << 30),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("Use larger chunks")));
}

// At every moment at which it is asked: the plan ends then, with what the interrupt returned.
TEST(PlannerLimitsTest, AnInterruptEndsThePlanning) {
  ASSERT_OK_AND_ASSIGN(
      const RangeTrace trace,
      PackTrace(RandomTrace(DrawOptions(/*seed=*/8, /*spans=*/true), 8).Make(), kTestChunkBytes));
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = {}, .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = DeviceFloorBytes(trace) + 2 * kTestChunkBytes;
  inputs.budget_bytes[Tier::kHost] = 40 * kTestChunkBytes;
  int most = 0;
  for (bool interrupted = true; interrupted; ++most) {
    int asked = 0;
    inputs.interrupt = [&]() -> absl::Status {
      if (asked++ < most) return absl::OkStatus();
      return absl::CancelledError("enough");
    };
    const absl::StatusOr<Plan> plan = MakePlan(inputs);
    interrupted = asked > most;
    if (interrupted) {
      ASSERT_THAT(plan, StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
      ASSERT_EQ(asked, most + 1);  // It is not asked again: nothing else is begun.
    } else {
      ASSERT_OK(plan.status());
    }
  }
  EXPECT_GT(most, 10);
}

// Of a plan by one rule: in the search, and then behind the times of its fetches, before each of
// three rounds that give their order, and before the plan is played.
TEST(PlannerLimitsTest, APlanIsInterruptedWhileItsFetchesAreOrdered) {
  ASSERT_OK_AND_ASSIGN(
      const RangeTrace trace,
      PackTrace(RandomTrace(DrawOptions(/*seed=*/8, /*spans=*/true), 8).Make(), kTestChunkBytes));
  PlanInputs inputs = {
      .trace = trace, .budget_bytes = {}, .costs = {}, .policy = {.kind = PolicyKind::kCpu}};
  inputs.budget_bytes[Tier::kDevice] = DeviceFloorBytes(trace) + 2 * kTestChunkBytes;
  inputs.budget_bytes[Tier::kHost] = int64_t{1} << 30;
  int asked = 0;
  inputs.interrupt = [&] {
    ++asked;
    return absl::OkStatus();
  };
  ASSERT_OK(MakePlan(inputs));
  constexpr int kElsewhere = 3;  // Twice in the search, and before the plan is checked.
  EXPECT_GE(asked, kElsewhere + 1 + 3 + 1);
}

// Out of time, the best plan that was found so far is better than none.
// Two chunks take turns in one slot of DEVICE, and none has room in HOST: each use is played there.
TEST(PlannerLimitsTest, ALongRoundInHostEndsWithItsDeadline) {
  Trace trace;
  trace.phase = "eval";
  trace.tensors = {{kTestChunkBytes, TensorGroup::kFrozen, 0},
                   {kTestChunkBytes, TensorGroup::kFrozen, 0}};
  for (int32_t i = 0; i < 400'000; ++i) {
    trace.operators.push_back({i, 1, 100, 0});
    trace.uses.push_back({.tensor = i % 2});
  }
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kTestChunkBytes));
  PlanInputs inputs = {.trace = packed, .budget_bytes = {}, .costs = {}, .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = kTestChunkBytes;
  const absl::Duration start = MonotonicNow();
  const absl::Duration deadline = absl::Seconds(20);
  inputs.interrupt = [&]() -> absl::Status {
    if (MonotonicNow() - start < deadline) return absl::OkStatus();
    return absl::DeadlineExceededError("late");
  };
  const absl::StatusOr<Plan> plan = MakePlan(inputs);
  EXPECT_TRUE(plan.ok() || absl::IsDeadlineExceeded(plan.status())) << plan.status();
  EXPECT_LT(MonotonicNow() - start, deadline + absl::Seconds(3));
}

TEST(PlannerLimitsTest, PlanningThatRunsOutOfTimeReturnsTheBestPlanInHand) {
  ASSERT_OK_AND_ASSIGN(
      const RangeTrace trace,
      PackTrace(RandomTrace(DrawOptions(/*seed=*/8, /*spans=*/true), 8).Make(), kTestChunkBytes));
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = {}, .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = DeviceFloorBytes(trace) + 2 * kTestChunkBytes;
  inputs.budget_bytes[Tier::kHost] = 40 * kTestChunkBytes;
  int none = 0, plans = 0;
  for (bool interrupted = true; interrupted;) {
    const int most = none + plans;
    int asked = 0;
    inputs.interrupt = [&]() -> absl::Status {
      if (asked++ < most) return absl::OkStatus();
      return absl::DeadlineExceededError("late");
    };
    const absl::StatusOr<Plan> plan = MakePlan(inputs);
    interrupted = asked > most;
    if (!plan.ok()) {
      ASSERT_THAT(plan, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("late")));
      ASSERT_EQ(plans, 0) << "a plan was in hand after " << none << " questions, and none after "
                          << most;
      ++none;
      continue;
    }
    ASSERT_OK(CheckPlan(*plan));
    ASSERT_LE(plan->device_bytes, inputs.budget_bytes[Tier::kDevice]);
    ++plans;
    ASSERT_LE(asked, most + 1);  // It is not asked again.
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(plans, 5);
}

}  // namespace
}  // namespace gemini::policies
