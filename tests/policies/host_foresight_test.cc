// SPDX-License-Identifier: Apache-2.0
#include "policies/host_foresight.h"

#include <gtest/gtest.h>

#include <vector>

namespace gemini::policies {
namespace {

std::vector<PlannedHostUse> UsesOf(const std::vector<int64_t>& chunks) {
  std::vector<PlannedHostUse> uses;
  for (const int64_t chunk : chunks) uses.push_back({.space = 0, .chunk = ChunkId(chunk)});
  return uses;
}

TEST(HostForesightTest, KnowsTheNextUseOfEachChunkRoundAfterRound) {
  HostForesight foresight(UsesOf({0, 1, 2, 1}), 0, 4);
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
    EXPECT_FALSE(foresight.NeedsBytes(ChunkId(3)));
  }
}

TEST(HostForesightTest, LeavesOutOtherSpacesAndChunksThatAreNotThere) {
  std::vector<PlannedHostUse> uses = UsesOf({0, 5, 1});
  uses.push_back({.space = 1, .chunk = ChunkId(0)});
  HostForesight foresight(uses, 0, 2);
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 1);
  foresight.Used(ChunkId(0));
  EXPECT_EQ(foresight.NextUse(ChunkId(0)), 2);
  EXPECT_TRUE(HostForesight(uses, 2, 2).empty());
}

TEST(HostForesightTest, TellsWhetherTheNextUseNeedsTheBytes) {
  std::vector<PlannedHostUse> uses = UsesOf({0, 1, 0});
  uses[0].overwrites = true;
  HostForesight foresight(uses, 0, 2);
  EXPECT_FALSE(foresight.NeedsBytes(ChunkId(0)));
  EXPECT_TRUE(foresight.NeedsBytes(ChunkId(1)));
  foresight.Used(ChunkId(0));
  EXPECT_TRUE(foresight.NeedsBytes(ChunkId(0)));
}

TEST(HostForesightTest, TakesAUseForTheNearestForeseen) {
  HostForesight foresight(UsesOf({0, 1, 2, 3, 0, 4, 5, 6}), 0, 7);
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
  HostForesight foresight(UsesOf({0, 1, 2, 3, 4, 5, 6, 7}), 0, 9);
  foresight.Used(ChunkId(6));
  foresight.Used(ChunkId(8));
  EXPECT_EQ(foresight.clock(), 0);
  EXPECT_EQ(foresight.NextUse(ChunkId(6)), 6);
}

TEST(HostForesightTest, ForgetsAUseThatDidNotComeAbout) {
  HostForesight foresight(UsesOf({0, 1, 2, 3, 4, 5, 6, 7}), 0, 8);
  for (const int64_t chunk : {0, 2}) foresight.Used(ChunkId(chunk));
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 1);
  foresight.Used(ChunkId(3));
  EXPECT_EQ(foresight.NextUse(ChunkId(1)), 9);
}

}  // namespace
}  // namespace gemini::policies
