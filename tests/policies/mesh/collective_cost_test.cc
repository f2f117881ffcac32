// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/collective_cost.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "policies/mesh/mesh.h"

namespace gemini::policies {
namespace {

// Eight ranks a node; the way out of a node is an eighth of what they have among themselves.
constexpr RankNetwork kNetwork = {
    .ranks_per_node = 8, .within = {2e-6, 200e9}, .between = {8e-6, 25e9}};
constexpr RankNetwork kWithoutLatency = {
    .ranks_per_node = 8, .within = {0, 200e9}, .between = {0, 25e9}};
constexpr GroupPlaces kAlone = {1, 1, 1};
constexpr GroupPlaces kNode = {8, 1, 8};
constexpr GroupPlaces kTwoNodes = {16, 2, 8};
constexpr GroupPlaces kOneOfEachNode = {16, 16, 1};
constexpr double kBytes = 1e9;

TEST(CollectiveCostTest, GroupsOfAMeshLieOnNodesByTheirNumbers) {
  const Mesh mesh = *Mesh::Make(64, {.pipeline = 2, .tensor = 4});
  const auto places = [&](MeshAxis axis) { return PlacesOf(mesh.GroupOf(9, {axis}), 8); };
  EXPECT_EQ(places(MeshAxis::kTensor).ranks_on_node, 4);
  EXPECT_EQ(places(MeshAxis::kTensor).num_nodes, 1);
  EXPECT_EQ(places(MeshAxis::kData).num_ranks, 8);  // Two of each of four nodes.
  EXPECT_EQ(places(MeshAxis::kData).ranks_on_node, 2);
  EXPECT_EQ(places(MeshAxis::kPipeline).ranks_on_node, 1);
  EXPECT_EQ(places(MeshAxis::kData).num_nodes, 4);
  const GroupPlaces uneven = PlacesOf(std::vector<int64_t>{0, 1, 2, 8}, 8);
  EXPECT_EQ(uneven.ranks_on_node, 1);  // The fewest.
  EXPECT_EQ(uneven.num_nodes, 2);
  EXPECT_EQ(PlacesOf(std::vector<int64_t>{5}, 8).num_ranks, 1);
}

TEST(CollectiveCostTest, OneRankTakesNoTime) {
  EXPECT_EQ(AllGatherSeconds(kBytes, kAlone, kNetwork), 0);
  EXPECT_EQ(ReduceScatterSeconds(kBytes, kAlone, kNetwork), 0);
  EXPECT_EQ(AllReduceSeconds(kBytes, kAlone, kNetwork), 0);
  EXPECT_EQ(AllToAllSeconds(kBytes, kAlone, kNetwork), 0);
  EXPECT_EQ(ShiftSeconds(kBytes, kAlone, kNetwork), 0);
}

TEST(CollectiveCostTest, RingsSendSevenEighthsAmongEightRanks) {
  EXPECT_DOUBLE_EQ(AllGatherSeconds(kBytes, kNode, kNetwork), 7 * 2e-6 + 7. / 8 * kBytes / 200e9);
  EXPECT_DOUBLE_EQ(ReduceScatterSeconds(kBytes, kNode, kNetwork),
                   AllGatherSeconds(kBytes, kNode, kNetwork));
  EXPECT_DOUBLE_EQ(AllReduceSeconds(kBytes, kNode, kNetwork),
                   2 * AllGatherSeconds(kBytes, kNode, kNetwork));
}

// Processors add up what has come, seven eighths of it from others.
TEST(CollectiveCostTest, SumsMayTakeTimeOfTheirOwn) {
  RankNetwork network = kNetwork;
  network.sum_bytes_per_second = 10e9;
  const double adding = 7. / 8 * kBytes / 10e9;
  EXPECT_EQ(AllGatherSeconds(kBytes, kNode, network), AllGatherSeconds(kBytes, kNode, kNetwork));
  EXPECT_DOUBLE_EQ(ReduceScatterSeconds(kBytes, kNode, network),
                   ReduceScatterSeconds(kBytes, kNode, kNetwork) + adding);
  EXPECT_DOUBLE_EQ(AllReduceSeconds(kBytes, kNode, network),
                   AllReduceSeconds(kBytes, kNode, kNetwork) + adding);
  constexpr GroupPlaces kMany = {1024, 128, 8};
  EXPECT_NEAR(AllReduceSeconds(1024, kMany, network) - AllReduceSeconds(1024, kMany, kNetwork),
              1024 / 10e9, 1e-9);
}

TEST(CollectiveCostTest, LatenciesAddUpAlongARing) {
  EXPECT_DOUBLE_EQ(AllGatherSeconds(0, kTwoNodes, kNetwork), 14 * 2e-6 + 8e-6);
  EXPECT_DOUBLE_EQ(AllGatherSeconds(0, kOneOfEachNode, kNetwork), 15 * 8e-6);
}

TEST(CollectiveCostTest, AShiftAcrossNodesIsAMessageBetweenTwo) {
  EXPECT_DOUBLE_EQ(ShiftSeconds(kBytes, kNode, kNetwork), SendSeconds(kBytes, false, kNetwork));
  EXPECT_DOUBLE_EQ(ShiftSeconds(kBytes, kTwoNodes, kNetwork), SendSeconds(kBytes, true, kNetwork));
  EXPECT_DOUBLE_EQ(ShiftSeconds(kBytes, kOneOfEachNode, kNetwork),
                   SendSeconds(kBytes, true, kNetwork));
}

// Whole nodes pass on by all their ways out at once, and one rank of each by its part of them:
// while it does so, seven others do the same in their groups.
TEST(CollectiveCostTest, RanksOfOneNodeShareItsWayOut) {
  EXPECT_DOUBLE_EQ(AllGatherSeconds(kBytes, kTwoNodes, kWithoutLatency),
                   15. / 16 * kBytes / (8 * 25e9));
  EXPECT_DOUBLE_EQ(AllGatherSeconds(kBytes, kOneOfEachNode, kWithoutLatency),
                   15. / 16 * kBytes / 25e9);
  // Beyond that the node's own links are what is slow.
  RankNetwork wide = kWithoutLatency;
  wide.between.bytes_per_second = 100e9;
  EXPECT_DOUBLE_EQ(AllGatherSeconds(kBytes, kTwoNodes, wide), 15. / 16 * kBytes / 200e9);
}

TEST(CollectiveCostTest, FewBytesAreAddedUpByTrees) {
  constexpr GroupPlaces kMany = {1024, 128, 8};
  const double ring = 2 * AllGatherSeconds(1024, kMany, kNetwork);
  // Three levels within a node, seven between 128 of them, up and down.
  EXPECT_NEAR(AllReduceSeconds(1024, kMany, kNetwork), 2 * (3 * 2e-6 + 7 * 8e-6), 1e-7);
  EXPECT_LT(AllReduceSeconds(1024, kMany, kNetwork), ring / 40);
  EXPECT_LE(AllReduceSeconds(kBytes, kMany, kNetwork),
            2 * AllGatherSeconds(kBytes, kMany, kNetwork));
}

TEST(CollectiveCostTest, AllToAllUsesBothWaysAtOnce) {
  EXPECT_DOUBLE_EQ(AllToAllSeconds(kBytes, kNode, kNetwork), 7 * (2e-6 + kBytes / 8 / 200e9));
  EXPECT_DOUBLE_EQ(AllToAllSeconds(kBytes, kTwoNodes, kNetwork), 8 * (8e-6 + kBytes / 16 / 25e9));
}

TEST(CollectiveCostTest, AMessageTakesItsOwnLink) {
  EXPECT_DOUBLE_EQ(SendSeconds(kBytes, /*to_another_node=*/false, kNetwork), 2e-6 + kBytes / 200e9);
  EXPECT_DOUBLE_EQ(SendSeconds(kBytes, /*to_another_node=*/true, kNetwork), 8e-6 + kBytes / 25e9);
}

}  // namespace
}  // namespace gemini::policies
