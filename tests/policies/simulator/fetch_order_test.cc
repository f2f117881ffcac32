// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/fetch_order.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/simulator/simulator.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = kTestChunkBytes;

// Four layers; all may be fetched for the next round when the last operator has ended, but 1 only
// when operator 0 of the round that needs it has.
struct Rounds {
  RangeTrace trace;
  Plan plan;
  CostModel costs = {.host_to_device = 1e9, .device_to_host = 1e9, .copy_latency_ns = 0};
};

Rounds FourLayers() {
  Trace tensors;
  tensors.tensors.assign(4, {kChunk, TensorGroup::kFrozen, 0});
  for (int32_t i = 0; i < 4; ++i) {
    tensors.operators.push_back({i, 1, 1'000, 0});
    tensors.uses.push_back({.tensor = i});
  }
  tensors.operators.push_back({4, 0, 1'000, 0});
  Rounds rounds = {.trace = *PackTrace(tensors, kChunk), .plan = {}};
  Plan& plan = rounds.plan;
  plan.fingerprint = rounds.trace.fingerprint;
  plan.chunk_bytes = kChunk;
  plan.device_bytes = 4 * kChunk;
  plan.ranges = rounds.trace.ranges;
  plan.first_use = {0, 1, 2, 3, 4, 4};
  plan.uses = {0, 1, 2, 3};
  plan.initial = {{0, SlotId(0)}, {2, SlotId(2)}, {3, SlotId(3)}};
  plan.fetches = {
      {1, SlotId(1), 0, 1}, {0, SlotId(0), 4, 5}, {2, SlotId(2), 4, 7}, {3, SlotId(3), 4, 8}};
  plan.evictions = {{0, 0, false}, {1, 1, false}, {2, 2, false}, {3, 3, false}};
  return rounds;
}

std::vector<int32_t> OrderOf(const Plan& plan) {
  std::vector<int32_t> order;
  for (const PlannedFetch& fetch : plan.fetches) order.push_back(fetch.range);
  return order;
}

TEST(FetchOrderTest, WhatTheNextRoundNeedsLateMakesWayForWhatItNeedsSoon) {
  Rounds rounds = FourLayers();
  ASSERT_OK(CheckPlan(rounds.plan));
  const auto before = Simulate(rounds.trace, rounds.plan, rounds.costs, false);
  ASSERT_OK(before);
  ASSERT_OK(OrderFetches(rounds.trace, rounds.costs, /*interrupt=*/{}, rounds.plan));
  ASSERT_OK(CheckPlan(rounds.plan));
  // A copy takes as long as four operators. When operator 0 has ended, 2 is on its way: then come
  // 1, and 3.
  EXPECT_THAT(OrderOf(rounds.plan), ElementsAre(1, 3, 0, 2));
  const auto after = Simulate(rounds.trace, rounds.plan, rounds.costs, false);
  ASSERT_OK(after);
  EXPECT_LT(after->totals.round_ns, before->totals.round_ns);
}

// Two fetches may begin when operator 0 has ended. The one needed first takes the slot of what
// operator 0 wrote, which is being written back for as long as ten copies take.
TEST(FetchOrderTest, WhileASlotIsBeingWrittenBackTheLinkBringsWhatHasRoom) {
  Trace tensors;
  tensors.tensors.assign(3, {kChunk, TensorGroup::kFrozen, 0});
  tensors.tensors[0].group = TensorGroup::kBuffer;
  tensors.operators = {{0, 1, 1'000, 0}, {1, 1, 1'000, 0}, {2, 1, 1'000, 0}};
  tensors.uses = {{.tensor = 0, .written = true}, {.tensor = 1}, {.tensor = 2}};
  const RangeTrace trace = *PackTrace(tensors, kChunk);
  Plan plan;
  plan.fingerprint = trace.fingerprint;
  plan.chunk_bytes = kChunk;
  plan.device_bytes = 2 * kChunk;
  plan.ranges = trace.ranges;
  plan.first_use = {0, 1, 2, 3};
  plan.uses = {0, 1, 2};
  plan.fetches = {{0, SlotId(0), -1, 0}, {1, SlotId(0), 0, 1}, {2, SlotId(1), 0, 2}};
  plan.evictions = {{0, 0, true}, {1, 1, false}, {2, 2, false}};
  const CostModel costs = {.host_to_device = 1e9, .device_to_host = 1e8, .copy_latency_ns = 0};
  ASSERT_OK(CheckPlan(plan));
  ASSERT_OK_AND_ASSIGN(const Simulation before, Simulate(trace, plan, costs, false));
  ASSERT_OK(OrderFetches(trace, costs, /*interrupt=*/{}, plan));
  ASSERT_OK(CheckPlan(plan));
  EXPECT_THAT(OrderOf(plan), ElementsAre(0, 2, 1));
  ASSERT_OK_AND_ASSIGN(const Simulation after, Simulate(trace, plan, costs, false));
  // Operator 2 no longer waits for a copy behind that of operator 1, but for what is left of it
  // beside that.
  EXPECT_EQ(before.totals.round_ns - after.totals.round_ns, kChunk - 1'000);
}

// As long as an update that is needed first is not committed, what is not updated comes.
TEST(FetchOrderTest, WhileAnUpdateIsNotCommittedTheLinkBringsWhatIsThere) {
  Trace tensors;
  tensors.phase = "train";
  tensors.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {kChunk, TensorGroup::kFrozen, 0}};
  tensors.operators = {{0, 1, 1'000, 0}, {1, 1, 1'000, 0}, {2, 0, 1'000, 0}};
  tensors.uses = {{.tensor = 0}, {.tensor = 1}};
  tensors.gradient_outs = {{1, 0}};
  tensors.updated = {0};
  const RangeTrace trace = *PackTrace(tensors, kChunk);
  Plan plan;
  plan.fingerprint = trace.fingerprint;
  plan.chunk_bytes = kChunk;
  plan.device_bytes = 2 * kChunk;
  plan.ranges = trace.ranges;
  plan.first_use = {0, 1, 2, 2};
  plan.uses = {0, 2};
  plan.updated = {0};
  plan.fetches = {{0, SlotId(0), -1, 0}, {2, SlotId(1), -1, 1}};
  plan.evictions = {{2, 1, false}};
  const CostModel costs = {.host_to_device = 1e9,
                           .device_to_host = 1e9,
                           .update_elements_per_second = 1e8,
                           .copy_latency_ns = 0};
  ASSERT_OK(CheckPlan(plan));
  ASSERT_OK(OrderFetches(trace, costs, /*interrupt=*/{}, plan));
  EXPECT_THAT(OrderOf(plan), ElementsAre(2, 0));
  ASSERT_OK(CheckPlan(plan));
}

TEST(FetchOrderTest, AnInterruptBeforeAnyRoundEndsItAndLeavesThePlanAsItWas) {
  for (int round = 0; round < 3; ++round) {
    Rounds rounds = FourLayers();
    int asked = 0;
    const PlanInterrupt interrupt = [&] {
      return asked++ < round ? absl::OkStatus() : absl::CancelledError("enough");
    };
    EXPECT_THAT(OrderFetches(rounds.trace, rounds.costs, interrupt, rounds.plan),
                StatusIs(absl::StatusCode::kCancelled));
    EXPECT_EQ(asked, round + 1);
    EXPECT_EQ(OrderOf(rounds.plan), OrderOf(FourLayers().plan));
  }
}

}  // namespace
}  // namespace gemini::policies
