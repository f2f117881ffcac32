// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/fetch_timing.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/trace/kept_gradients.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = kTestChunkBytes;

// Eight operators; tensors 0 and 1 are frozen, 2 is trained. Each range takes a slot.
RangeTrace EightOperators() {
  Trace trace;
  trace.tensors = {{kChunk, TensorGroup::kFrozen, 0},
                   {kChunk, TensorGroup::kFrozen, 0},
                   {kChunk, TensorGroup::kTrainable, 1}};
  for (const int32_t tensor : {0, 0, 1, 1, 2, 2, 0}) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 1, 0, 0});
    trace.uses.push_back({.tensor = tensor});
  }
  trace.operators.push_back({7, 0, 0, 0});
  trace.gradient_outs = {{5, 2}};
  trace.updated = {2};
  return *PackTrace(trace, kChunk);
}

std::vector<int32_t> Times(const RangeTrace& trace, const std::vector<int32_t>& slots_at,
                           const std::vector<Stay>& stays) {
  return FetchTimes(trace, NextUses(trace), slots_at, stays);
}

TEST(FetchTimingTest, AFetchBeginsWhenItsSlotIsVacated) {
  const std::vector<Stay> stays = {{0, 0, 0, 1}, {1, 0, 2, 3}};
  // The slot passes from 0 to 1 after 1, and back after 3 of the round before.
  EXPECT_THAT(Times(EightOperators(), std::vector<int32_t>(8, 1), stays), ElementsAre(-5, 1));
}

TEST(FetchTimingTest, AnIntervalWithoutRoomPutsItOff) {
  const std::vector<Stay> stays = {{0, 0, 0, 1}, {1, 1, 6, 6}};
  std::vector<int32_t> slots_at(8, 2);
  EXPECT_EQ(Times(EightOperators(), slots_at, stays)[1], -2);
  slots_at[3] = 0;
  EXPECT_EQ(Times(EightOperators(), slots_at, stays)[1], 4);
  slots_at[5] = 0;
  EXPECT_EQ(Times(EightOperators(), slots_at, stays)[1], 6);  // On demand.
}

TEST(FetchTimingTest, RoomGoesToWhatIsNeededFirst) {
  const std::vector<Stay> stays = {{1, 1, 5, 5}, {0, 0, 4, 4}};
  std::vector<int32_t> slots_at(8, 2);
  slots_at[3] = 1;
  EXPECT_THAT(Times(EightOperators(), slots_at, stays), ElementsAre(4, -4));
}

TEST(FetchTimingTest, WhatTheUpdateChangesWaitsForIt) {
  // Its slots are free since operator 5 of the round before.
  const std::vector<Stay> stays = {{2, 0, 4, 5}};
  EXPECT_THAT(Times(EightOperators(), std::vector<int32_t>(8, 2), stays), ElementsAre(-1));
}

TEST(FetchTimingTest, AGradientWaitsForTheOneThatLeavesForItsChunk) {
  const std::vector<Stay> stays = {{3, 0, 7, 7}};
  EXPECT_THAT(Times(EightOperators(), std::vector<int32_t>(8, 2), stays), ElementsAre(6));
}

TEST(FetchTimingTest, WhatComesBlankBeginsWhenItIsNeeded) {
  const RangeTrace trace = WithKeptGradients(EightOperators(), {2}, {});
  // The gradients, and the moments: these as early as the update of the round before.
  const std::vector<Stay> stays = {{3, 0, 5, 7}, {4, 1, 7, 7}, {5, 2, 7, 7}};
  EXPECT_THAT(Times(trace, std::vector<int32_t>(8, 3), stays), ElementsAre(5, -1, -1));
  // Gradients that come back are fetched like others.
  const std::vector<Stay> twice = {{3, 0, 5, 5}, {3, 0, 7, 7}};
  EXPECT_THAT(Times(trace, std::vector<int32_t>(8, 3), twice), ElementsAre(5, 5));
}

TEST(FetchTimingTest, ARangeIsNotFetchedBeforeItHasLeft) {
  const std::vector<Stay> stays = {{0, 0, 0, 1}, {0, 1, 6, 6}};
  EXPECT_THAT(Times(EightOperators(), std::vector<int32_t>(8, 2), stays), ElementsAre(-2, 1));
}

}  // namespace
}  // namespace gemini::policies
