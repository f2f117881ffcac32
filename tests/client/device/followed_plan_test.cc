// SPDX-License-Identifier: Apache-2.0
#include "client/device/followed_plan.h"

#include <optional>
#include <vector>

#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using Activity = FollowedPlan::Activity;
constexpr size_t kIn = FollowedPlan::kIn, kOut = FollowedPlan::kOut, kBack = FollowedPlan::kBack;

// A plan that fetches the first of two ranges, in a table of one slot.
class FollowedPlanTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/1, /*host_slots=*/2, 0);
    ASSERT_NE(session_, nullptr);
    ChunkStore* const store = OpenSpace("space", 2, 2, 0);
    ASSERT_NE(store, nullptr);
    fetched_ = table_.Add(*store, BundleId(0), 1, ChunkKind::kParam);
    other_ = table_.Add(*store, BundleId(1), 1, ChunkKind::kParam);
    plan_.Begin({.fetched = {true}, .kept = {false, true}, .counts = {{}}}, /*reached=*/10);
  }
  std::optional<Divergence> WhyNot(RangeId range) { return plan_.WhyNotComing(range, table_); }

  std::vector<std::byte> arena_ = std::vector<std::byte>(kTestChunkBytes);
  RangeTable table_{arena_.data(), 1, kTestChunkBytes};
  PlanProgress progress_;
  FollowedPlan plan_{progress_};
  RangeId fetched_, other_;
};

TEST_F(FollowedPlanTest, ProgressTellsOfTheSmallestGateOnce) {
  EXPECT_TRUE(progress_.active());
  EXPECT_FALSE(progress_.Reach(11));  // Nobody waits.
  plan_.WaitForGate(kIn, Activity::kGate, 14);
  plan_.WaitForGate(kOut, Activity::kPinned, 13);
  EXPECT_FALSE(progress_.Reach(12));
  EXPECT_TRUE(progress_.Reach(13));
  plan_.OpenGates();
  EXPECT_FALSE(progress_.Reach(13));
  EXPECT_FALSE(progress_.Reach(9));
  EXPECT_EQ(progress_.reached(), 13);
  EXPECT_TRUE(progress_.Reach(14));
  plan_.OpenGates();
  EXPECT_FALSE(progress_.Reach(20));
}

TEST_F(FollowedPlanTest, LanesThatWaitForTheOperatorsRest) {
  EXPECT_FALSE(plan_.AllRest());
  plan_.WaitForGate(kIn, Activity::kGate, 12);
  plan_.WaitForTurn(kOut, 0, {.fetches = 1, .evictions = 0});
  plan_.SetActivity(kBack, Activity::kIdle);
  EXPECT_TRUE(plan_.AllRest());
  EXPECT_FALSE(plan_.IsIdle());
  ++plan_.counts(0).fetches;  // The lane's turn has come, though it has not run yet.
  EXPECT_FALSE(plan_.OutRests());
  plan_.SetActivity(kOut, Activity::kIdle);
  progress_.Reach(12);  // So has the gate.
  EXPECT_FALSE(plan_.AllRest());
  EXPECT_TRUE(plan_.OutRests());
  plan_.SetActivity(kIn, Activity::kIdle);
  EXPECT_TRUE(plan_.IsIdle());
}

TEST_F(FollowedPlanTest, WhatIsFetchedComesUnlessTheFetchWaitsForTheOperators) {
  EXPECT_EQ(WhyNot(fetched_), std::nullopt);
  EXPECT_EQ(WhyNot(other_), Divergence::kPinned);
  plan_.WaitForGate(kIn, Activity::kGate, 12);
  EXPECT_EQ(WhyNot(fetched_), Divergence::kPinned);
  plan_.WaitForGate(kIn, Activity::kBudget, 12);
  EXPECT_EQ(WhyNot(fetched_), Divergence::kNonModel);
  progress_.Reach(12);
  EXPECT_EQ(WhyNot(fetched_), std::nullopt);
}

TEST_F(FollowedPlanTest, AFetchWhoseSlotIsTakenComesWhileLanesEvict) {
  plan_.Place(fetched_, SlotId(0));
  for (const size_t lane : {kOut, kBack}) plan_.SetActivity(lane, Activity::kIdle);
  EXPECT_EQ(WhyNot(fetched_), std::nullopt);  // The slot is free.
  table_.TakeSlots(other_, SlotId(0), RangeState::kIncoming);
  EXPECT_EQ(WhyNot(fetched_), Divergence::kPinned);
  plan_.SetActivity(kBack, Activity::kWorking);
  EXPECT_EQ(WhyNot(fetched_), std::nullopt);
  // So does one whose turn is after their moves.
  plan_.WaitForTurn(kIn, 0, {.fetches = 0, .evictions = 1});
  EXPECT_EQ(WhyNot(fetched_), std::nullopt);
  plan_.SetActivity(kBack, Activity::kIdle);
  EXPECT_EQ(WhyNot(fetched_), Divergence::kPinned);
}

TEST_F(FollowedPlanTest, AWaiterWaitsForRoomOrForTheChunkInHost) {
  EXPECT_EQ(plan_.WaitingFor(table_), StallCause::kTransfer);
  plan_.Place(fetched_, SlotId(0));
  EXPECT_EQ(plan_.WaitingFor(table_), StallCause::kRoom);
  plan_.SetActivity(kIn, Activity::kWorking);
  EXPECT_EQ(plan_.WaitingFor(table_), StallCause::kTransfer);
  table_.at(fetched_).acquiring = 0;
  EXPECT_EQ(plan_.WaitingFor(table_), StallCause::kNvme);
  // The next plan has placed nothing yet.
  plan_.Begin({}, 20);
  EXPECT_EQ(plan_.WaitingFor(table_), StallCause::kTransfer);
  EXPECT_FALSE(plan_.KeepsGradient(other_));
}

TEST_F(FollowedPlanTest, KeepsWhatItSays) {
  EXPECT_TRUE(plan_.KeepsGradient(other_));
  EXPECT_FALSE(plan_.KeepsGradient(fetched_));
  EXPECT_FALSE(plan_.KeepsGradient(RangeId(7)));
}

}  // namespace
}  // namespace gemini::client
