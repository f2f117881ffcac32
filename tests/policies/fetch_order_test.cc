// SPDX-License-Identifier: Apache-2.0
#include "policies/fetch_order.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/simulator.h"
#include "tests/policies/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = kTestChunkBytes;

// Four layers; all may be fetched for the next round when the last operator has ended, but 1 only when
// operator 0 of the round that needs it has.
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

TEST(FetchOrderTest, WhatTheNextRoundNeedsLateMakesWayForWhatItNeedsSoon) {
  Rounds rounds = FourLayers();
  ASSERT_OK(CheckPlan(rounds.plan));
  const auto before = Simulate(rounds.trace, rounds.plan, rounds.costs, false);
  ASSERT_OK(before);
  OrderFetches(rounds.trace, rounds.costs, rounds.plan);
  ASSERT_OK(CheckPlan(rounds.plan));
  std::vector<int32_t> order;
  for (const PlannedFetch& fetch : rounds.plan.fetches) order.push_back(fetch.range);
  // A copy takes as long as four operators. When operator 0 has ended, 2 is on its way: then come 1, and 3.
  EXPECT_THAT(order, ElementsAre(1, 3, 0, 2));
  const auto after = Simulate(rounds.trace, rounds.plan, rounds.costs, false);
  ASSERT_OK(after);
  EXPECT_LT(after->totals.round_ns, before->totals.round_ns);
}

}  // namespace
}  // namespace gemini::policies
