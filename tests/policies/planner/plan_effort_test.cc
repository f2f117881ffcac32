// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/plan_effort.h"

#include <cstdint>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/trace/range_trace.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

TEST(PlanEffortTest, ATraceHasAtLeastTheStepsThatItHasPacked) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Trace trace = RandomTrace(DrawOptions(seed, /*spans=*/seed % 2 == 0), seed).Make();
    ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kTestChunkBytes));
    const int64_t steps = PlanSteps(packed);
    EXPECT_GT(steps, static_cast<int64_t>(packed.uses.size()));
    EXPECT_GE(PlanSteps(trace, kTestChunkBytes), steps);
  }
}

TEST(PlanEffortTest, ManyUsesOfManyChunksAreCountedUpToTheLimit) {
  Trace trace;
  trace.tensors.push_back({int64_t{1} << 59, TensorGroup::kTrainable, 0});
  trace.tensors.push_back({int64_t{1} << 59, TensorGroup::kTrainable, 0});
  for (int32_t i = 0; i < 1'000; ++i) {
    trace.operators.push_back({i, 1, 0, 0});
    trace.uses.push_back({.tensor = i % 2});
    trace.gradient_outs.push_back({i, i % 2});
  }
  trace.operators.push_back({1'000, 0, 0, 0});
  trace.updated = {0, 1};
  ASSERT_OK(CheckTrace(trace));
  EXPECT_EQ(PlanSteps(trace, kTestChunkBytes), kMaxPlanSteps + 1);
  EXPECT_THAT(CheckPlanSteps(PlanSteps(trace, kTestChunkBytes)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("placed on demand")));
  EXPECT_OK(CheckPlanSteps(kMaxPlanSteps));
}

// What is tried is bounded: rounds that are played, each of all steps.
TEST(PlanEffortTest, TheStepsOfAllThatIsTriedAreFew) {
  for (int64_t steps = 1; steps <= kMaxPlanSteps; steps = steps * 5 / 4 + 1) {
    const PlanEffort effort = EffortFor(steps);
    const int64_t rules = effort.compares_rules ? 8 : 1;
    const int64_t rounds = effort.most_rounds * (effort.most_closings + 2);
    const int64_t played = (rules * rounds + effort.most_kept_tries * rounds) * steps;
    EXPECT_LE(played, 100'000'000) << steps;
    EXPECT_LE(EffortFor(steps + 1).most_kept_tries, effort.most_kept_tries);
  }
}

}  // namespace
}  // namespace gemini::policies
