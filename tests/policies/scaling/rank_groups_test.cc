// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/rank_groups.h"

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

void ExpectPlaces(const GroupPlaces& places, int64_t ranks, int64_t nodes, int64_t on_node) {
  EXPECT_EQ(places.num_ranks, ranks);
  EXPECT_EQ(places.num_nodes, nodes);
  EXPECT_EQ(places.ranks_on_node, on_node);
}

TEST(RankGroupsTest, NeighboursShareLayersAndStagesCrossNodes) {
  // Ranks 0 to 3 are a line, 0 and 4 learn from other rows, 0 and 8 are stages.
  const Mesh mesh = *Mesh::Make(16, {.pipeline = 2, .tensor = 4});
  const TensorGrid line = *TensorGrid::Make(TensorMode::k1d, 4);
  RankGroups groups = GroupsOf(mesh, line, 8);
  ExpectPlaces(groups.line(TensorAxis::kJ), 4, 1, 4);
  ExpectPlaces(groups.shards, 2, 1, 2);
  EXPECT_TRUE(groups.stages_cross_nodes);
  groups = GroupsOf(mesh, line, 4);
  ExpectPlaces(groups.shards, 2, 2, 1);
  EXPECT_FALSE(GroupsOf(mesh, line, 16).stages_cross_nodes);
  // The first two of four stages are on one node, the third is not.
  EXPECT_TRUE(GroupsOf(*Mesh::Make(4, {.pipeline = 4}), TensorGrid(), 2).stages_cross_nodes);
  groups = GroupsOf(mesh, line, 2);
  ExpectPlaces(groups.line(TensorAxis::kJ), 4, 2, 2);
}

TEST(RankGroupsTest, ZeroDividesAmongRanksWithTheSameParts) {
  // Depth is slower than rows and columns: ranks 0 and 4 of a grid have the same parts.
  const Mesh mesh = *Mesh::Make(16, {.tensor = 8});
  const RankGroups groups = GroupsOf(mesh, *TensorGrid::Make(TensorMode::k2Point5d, 8, 2), 8);
  ExpectPlaces(groups.shards, 4, 2, 2);
  ExpectPlaces(groups.line(TensorAxis::kK), 2, 1, 2);
  // In 3d each rank has parts of its own.
  ExpectPlaces(GroupsOf(mesh, *TensorGrid::Make(TensorMode::k3d, 8), 8).shards, 2, 2, 1);
  // Those that share sequences have the same ones.
  const RankGroups shared = GroupsOf(*Mesh::Make(16, {.sequence = 4}), TensorGrid(), 8);
  ExpectPlaces(shared.shards, 16, 2, 8);
  ExpectPlaces(shared.sequence, 4, 1, 4);
}

}  // namespace
}  // namespace gemini::policies
