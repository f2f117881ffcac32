// SPDX-License-Identifier: Apache-2.0
#include "client/plan/planned_phase.h"

#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

// A round of one tensor, `num_uses` operators that use it, and its update.
Trace RoundOf(int num_uses, int64_t peak_bytes = 0) {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{.size_bytes = 64}};
  for (int32_t i = 0; i < num_uses; ++i) {
    trace.operators.push_back({.first_use = i, .num_uses = 1, .non_model_peak_bytes = peak_bytes});
    trace.uses.push_back({.tensor = 0});
  }
  trace.operators.push_back({.first_use = num_uses});
  trace.updated = {0};
  return trace;
}

class PlannedPhaseTest : public ::testing::Test {
 protected:
  void Keep(Trace trace, bool is_new, std::optional<Divergence> left_for = std::nullopt) {
    ASSERT_OK_AND_ASSIGN(const bool is_kept, phase_.Keep(trace, left_for));
    EXPECT_EQ(is_kept, is_new);
  }
  void MakePlan() { phase_.plan = std::make_shared<BoundPlan>(); }

  PlannedPhase phase_;
};

TEST_F(PlannedPhaseTest, ARoundOfOtherOperatorsReplacesTraceAndPlan) {
  Keep(RoundOf(2), /*is_new=*/true);
  MakePlan();
  phase_.averaged_rounds = 5;
  Keep(RoundOf(3), /*is_new=*/true);
  EXPECT_EQ(phase_.trace->num_positions(), 4);
  EXPECT_EQ(phase_.plan, nullptr);
  EXPECT_EQ(phase_.averaged_rounds, 0);
}

TEST_F(PlannedPhaseTest, ARoundOfTheSameOperatorsAddsItsPeaks) {
  Keep(RoundOf(2, /*peak_bytes=*/100), /*is_new=*/true);
  MakePlan();
  Keep(RoundOf(2, /*peak_bytes=*/300), /*is_new=*/false);
  Keep(RoundOf(2, /*peak_bytes=*/200), /*is_new=*/false, Divergence::kPinned);
  EXPECT_EQ(phase_.trace->operators[1].non_model_peak_bytes, 300);
  EXPECT_NE(phase_.plan, nullptr);
  Keep(RoundOf(2), /*is_new=*/false, Divergence::kNonModel);  // The plan left it too little room.
  EXPECT_EQ(phase_.plan, nullptr);
}

TEST_F(PlannedPhaseTest, ARoundWithoutItsUpdateIsNotKept) {
  Keep(RoundOf(2), /*is_new=*/true);
  Trace interrupted = RoundOf(5);
  interrupted.updated.clear();
  Keep(interrupted, /*is_new=*/false);
  EXPECT_EQ(phase_.trace->num_positions(), 3);
}

TEST_F(PlannedPhaseTest, BadRoundsAndRefusalsArePlannedEverMoreRarely) {
  std::vector<int> skipped;
  for (int round = 0; round < 9; ++round) {
    phase_.CountBadRound();
    skipped.push_back(phase_.rounds_to_skip);
  }
  EXPECT_EQ(skipped, (std::vector<int>{0, 0, 1, 2, 4, 8, 16, 32, 32}));
  phase_.CountRefusal();
  phase_.CountRefusal();
  EXPECT_EQ(phase_.rounds_to_skip, 2);
}

TEST_F(PlannedPhaseTest, GoodRoundsMakeThePlanOnceMoreWithTheirTimes) {
  Keep(RoundOf(2), /*is_new=*/true);
  phase_.bad_rounds = 2;
  for (int round = 1; round <= 10; ++round) {
    MakePlan();
    phase_.CountGoodRound(/*source_epoch=*/0, {});
    EXPECT_EQ(phase_.plan == nullptr, round == 3) << round;
  }
  EXPECT_EQ(phase_.bad_rounds, 0);
  phase_.CountGoodRound(/*source_epoch=*/1, {});
  EXPECT_EQ(phase_.averaged_rounds, 0);
  EXPECT_NE(phase_.plan, nullptr);
  phase_.CountGoodRound(/*source_epoch=*/1, {{.position = 1, .tensor = 0}});
  EXPECT_EQ(phase_.trace->gradient_outs.size(), 1u);
  EXPECT_EQ(phase_.plan, nullptr);
}

TEST(PhaseTableTest, WhatIsNotThereYetIsNotFound) {
  PhaseTable phases;
  PlannedPhase& train = phases.Get("train");
  EXPECT_EQ(&phases.Get("train"), &train);
  EXPECT_THAT(phases.TraceOf("train"), StatusIs(absl::StatusCode::kNotFound));
  train.trace = RoundOf(2);
  EXPECT_OK(phases.TraceOf("train"));
  EXPECT_THAT(phases.PlanOf("train"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(phases.TraceOf("eval"), StatusIs(absl::StatusCode::kNotFound));
  phases.NoteOrder(train);
  PlannedPhase& other = phases.Get("other");
  phases.NoteOrder(other);
  EXPECT_EQ(train.next, &other);
  phases.AddTensors({}, /*space=*/0);
  EXPECT_EQ(phases.Get("train").next, nullptr);
}

}  // namespace
}  // namespace gemini::client
