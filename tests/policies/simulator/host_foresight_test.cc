// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_foresight.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>
#include <vector>

namespace gemini::policies {
namespace {

// A use every 10 ns.
Plan PlanOf(const std::vector<int64_t>& chunks, int64_t read_ns = 0) {
  Plan plan;
  for (const int64_t chunk : chunks) {
    plan.host_uses.push_back({.space = 0,
                              .chunk = ChunkId(chunk),
                              .at_ns = 10 * static_cast<int64_t>(plan.host_uses.size())});
  }
  plan.prediction.round_ns = 10 * static_cast<int64_t>(chunks.size());
  plan.host_read_ns = read_ns;
  return plan;
}

HostForesight ForesightOf(const Plan& plan, int32_t space, int64_t num_chunks) {
  return HostForesight(plan.host_uses, plan.prediction.round_ns, plan.host_read_ns, space,
                       num_chunks);
}

std::optional<ChunkId> NextOf(HostForesight foresight, const std::set<int64_t>& missing) {
  return foresight.NextToRead([&](ChunkId chunk) { return missing.contains(chunk.value()); });
}

TEST(HostForesightTest, KnowsTheNextUseOfEachChunkRoundAfterRound) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 1}), 0, 4);
  EXPECT_FALSE(foresight.empty());
  for (int64_t round = 0; round < 3; ++round) {
    const int64_t begin = 4 * round;
    EXPECT_EQ(foresight.clock(), begin);
    EXPECT_EQ(foresight.NextUse(ChunkId(0)), begin);
    EXPECT_EQ(foresight.NextUse(ChunkId(1)), begin + 1);
    foresight.Used(ChunkId(0));
    EXPECT_EQ(foresight.NextUse(ChunkId(0)), begin + 4);
    foresight.Used(ChunkId(1));
    EXPECT_EQ(foresight.NextUse(ChunkId(1)), begin + 3);
    foresight.Used(ChunkId(2));
    foresight.Used(ChunkId(1));
    EXPECT_EQ(foresight.NextUse(ChunkId(2)), begin + 6);
    EXPECT_EQ(foresight.NextUse(ChunkId(3)), HostForesight::kNoUse);
  }
}

// A use costs a search among the chunk's, and not a walk over a quarter of the round, which here
// would be 10^10 steps.
TEST(HostForesightTest, AChunkThatIsUsedAllTheTimeCostsNoMoreThanOthers) {
  constexpr int64_t kUses = 400'000;
  std::vector<int64_t> chunks;
  for (int64_t i = 0; i < kUses; ++i) chunks.push_back(i % 2);
  HostForesight foresight = ForesightOf(PlanOf(chunks), 0, 2);
  for (int64_t i = 0; i < 2 * kUses; ++i) foresight.Used(ChunkId(i % 2));
  EXPECT_EQ(foresight.clock(), 2 * kUses);
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 2 * kUses + 1);
}

TEST(HostForesightTest, LeavesOutOtherSpacesAndChunksThatAreNotThere) {
  Plan plan = PlanOf({0, 5, 1});
  plan.host_uses.push_back({.space = 1, .chunk = ChunkId(0), .at_ns = 25});
  HostForesight foresight = ForesightOf(plan, 0, 2);
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 1);
  foresight.Used(ChunkId(0));
  EXPECT_EQ(foresight.NextUse(ChunkId(0)), 2);
  EXPECT_TRUE(ForesightOf(plan, 2, 2).empty());
  EXPECT_EQ(NextOf(ForesightOf(plan, 2, 2), {0, 1}), std::nullopt);
}

TEST(HostForesightTest, ForeseesNothingOfTimesThatNobodyHas) {
  const Plan plan = PlanOf({0, 1, 2});
  constexpr int64_t kTooLong = HostForesight::kMostNs + 1;
  EXPECT_FALSE(HostForesight(plan.host_uses, HostForesight::kMostNs, 5, 0, 3).empty());
  for (const int64_t wrong : {int64_t{-1}, kTooLong, std::numeric_limits<int64_t>::max()}) {
    EXPECT_TRUE(HostForesight(plan.host_uses, wrong, 5, 0, 3).empty());
    EXPECT_TRUE(HostForesight(plan.host_uses, 30, wrong, 0, 3).empty());
    Plan other = plan;
    other.host_uses.back().at_ns = wrong;
    HostForesight foresight = ForesightOf(other, 0, 3);
    EXPECT_TRUE(foresight.empty());
    EXPECT_EQ(NextOf(foresight, {0, 1, 2}), std::nullopt);
    EXPECT_EQ(foresight.NextUse(ChunkId(0)), HostForesight::kNoUse);
  }
}

TEST(HostForesightTest, TakesAUseForTheNearestForeseen) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 0, 4, 5, 6}), 0, 7);
  // One thread is ahead of another.
  foresight.Used(ChunkId(1));
  EXPECT_EQ(foresight.clock(), 2);
  EXPECT_EQ(foresight.NextUse(ChunkId(0)), 0);
  foresight.Used(ChunkId(0));
  EXPECT_EQ(foresight.NextUse(ChunkId(0)), 4);
  // A burst of uses that was foreseen as one.
  foresight.Used(ChunkId(0));
  EXPECT_EQ(foresight.NextUse(ChunkId(0)), 4);
  EXPECT_EQ(foresight.clock(), 2);
}

TEST(HostForesightTest, DoesNotFollowWhatWasNotForeseen) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}), 0, 9);
  foresight.Used(ChunkId(6));
  foresight.Used(ChunkId(8));
  EXPECT_EQ(foresight.clock(), 0);
  EXPECT_EQ(foresight.NextUse(ChunkId(6)), 6);
}

TEST(HostForesightTest, ForgetsAUseThatDidNotComeAbout) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}), 0, 8);
  for (const int64_t chunk : {0, 2}) foresight.Used(ChunkId(chunk));
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 1);
  foresight.Used(ChunkId(3));
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 9);
}

TEST(HostForesightTest, ReadsWhatIsMissingWhenItHasToCome) {
  // With a read taken for 10 ns: one missing chunk is due 10 ns before its use.
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}, /*read_ns=*/5), 0, 8);
  EXPECT_EQ(NextOf(foresight, {3}), std::nullopt);
  EXPECT_EQ(NextOf(foresight, {1}), ChunkId(1));
  EXPECT_EQ(NextOf(foresight, {0, 3}), ChunkId(0));
  foresight.Used(ChunkId(0));
  foresight.Used(ChunkId(1));
  EXPECT_EQ(NextOf(foresight, {3}), ChunkId(3));
  // In the next round.
  EXPECT_EQ(NextOf(foresight, {0}), std::nullopt);
  for (const int64_t chunk : {2, 3, 4, 5, 6}) foresight.Used(ChunkId(chunk));
  EXPECT_EQ(NextOf(foresight, {0}), ChunkId(0));
}

TEST(HostForesightTest, ReadsTheFirstWhenAnyMissingOneWouldComeLate) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}, /*read_ns=*/10), 0, 8);
  EXPECT_EQ(NextOf(foresight, {3}), std::nullopt);
  // Two reads take all of the 40 ns until the second one's use.
  EXPECT_EQ(NextOf(foresight, {3, 4}), ChunkId(3));
  EXPECT_EQ(NextOf(foresight, {3, 5}), std::nullopt);
}

TEST(HostForesightTest, ComesBackToWhatLeft) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}, /*read_ns=*/10), 0, 8);
  std::set<int64_t> missing = {4, 5};
  const auto next = [&] {
    return foresight.NextToRead([&](ChunkId chunk) { return missing.contains(chunk.value()); });
  };
  EXPECT_EQ(next(), std::nullopt);
  foresight.Used(ChunkId(0));
  EXPECT_EQ(next(), ChunkId(4));  // Due with the one behind it.
  missing = {5};
  EXPECT_EQ(next(), ChunkId(5));
  // Given up for something else.
  missing = {3, 5};
  foresight.Left(ChunkId(3));
  EXPECT_EQ(next(), ChunkId(3));
}

TEST(HostForesightTest, ReadsFirstWhatIsLate) {
  HostForesight foresight = ForesightOf(PlanOf({0, 1, 2, 3, 4, 5, 6, 7}, /*read_ns=*/5), 0, 8);
  foresight.Used(ChunkId(1));
  EXPECT_EQ(NextOf(foresight, {0, 2}), ChunkId(0));
}

TEST(HostForesightTest, DoesNotReadWhatIsOverwritten) {
  Plan plan = PlanOf({0, 1, 0}, /*read_ns=*/50);
  plan.host_uses[0].overwrites = true;
  HostForesight foresight = ForesightOf(plan, 0, 2);
  EXPECT_EQ(NextOf(foresight, {0}), std::nullopt);
  foresight.Used(ChunkId(0));
  EXPECT_EQ(NextOf(foresight, {0}), ChunkId(0));
}

}  // namespace
}  // namespace gemini::policies
