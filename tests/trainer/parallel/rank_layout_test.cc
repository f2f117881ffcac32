// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using policies::Mesh;
using policies::TensorAxis;
using policies::TensorGrid;
using policies::TensorMode;
using ::testing::ElementsAre;

RankLayout Layout(int64_t num_ranks, TensorMode mode, int64_t tensor, int64_t depth = 1) {
  return {*Mesh::Make(num_ranks, {.tensor = tensor}), *TensorGrid::Make(mode, tensor, depth)};
}

TEST(RankLayoutTest, RanksThatShareNoLayerHaveOnePart) {
  const RankLayout layout(3);
  EXPECT_THAT(layout.parts(), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_EQ(layout.num_data(), 3);
  EXPECT_EQ(layout.data(2), 2);
  EXPECT_TRUE(layout.SpeaksForData(2));
}

TEST(RankLayoutTest, EachPlaceHasAPart) {
  const RankLayout layout = Layout(4, TensorMode::k1d, 2);
  EXPECT_THAT(layout.parts(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_EQ(layout.place_of_part(1), 1);
  EXPECT_EQ(layout.num_data(), 2);
  EXPECT_EQ(layout.data(3), 1);
  EXPECT_EQ(layout.place(3), 1);
  EXPECT_TRUE(layout.SpeaksForData(2));
  EXPECT_FALSE(layout.SpeaksForData(3));
  EXPECT_THAT(layout.Lines(TensorAxis::kJ), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(RankLayoutTest, LayersOf2Point5dShareTheirParts) {
  // Two grids of two layers of one rank each.
  const RankLayout layout = Layout(4, TensorMode::k2Point5d, 2, 2);
  EXPECT_THAT(layout.parts(), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(layout.Lines(TensorAxis::kK), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(
      Layout(8, TensorMode::k2Point5d, 8, 2).parts(),
      ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
}

// Two of data, two that share sequences, two that share layers.
TEST(RankLayoutTest, RanksThatShareSequencesHaveTheSameBoxes) {
  const RankLayout layout(*Mesh::Make(8, {.sequence = 2, .tensor = 2}),
                          *TensorGrid::Make(TensorMode::k1d, 2),
                          {.sharing = SequenceSharing::kRing, .zigzag = true});
  EXPECT_THAT(layout.parts(), ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(layout.SequenceLines(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3),
                                                  ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_EQ(layout.num_data(), 2);
  EXPECT_EQ(layout.ranks_of_row(), 4);
  EXPECT_EQ(layout.parts_of_hidden(), 2);
  EXPECT_EQ(layout.data(5), 1);
  EXPECT_TRUE(layout.SpeaksForData(4));
  for (const int rank : {5, 6, 7}) EXPECT_FALSE(layout.SpeaksForData(rank));
  EXPECT_EQ(layout.CoordinatesOf(6), "dp 1, sp 1, tp 0");
}

// Two pipelines of two, of which two ranks share each layer.
TEST(RankLayoutTest, RanksOfAPipelineHaveOtherParts) {
  const RankLayout layout(*Mesh::Make(8, {.pipeline = 2, .tensor = 2}),
                          *TensorGrid::Make(TensorMode::k1d, 2));
  EXPECT_THAT(layout.parts(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6),
                                          ElementsAre(5, 7)));
  EXPECT_EQ(layout.place_of_part(3), 1);
  EXPECT_EQ(layout.pipeline_rank_of_part(1), 0);
  EXPECT_EQ(layout.pipeline_rank_of_part(2), 1);
  EXPECT_EQ(layout.num_data(), 2);
  EXPECT_EQ(layout.ranks_of_row(), 2);
  EXPECT_EQ(layout.pipeline_rank(3), 0);
  EXPECT_EQ(layout.pipeline_rank(4), 1);
  // The loss is with the last blocks.
  for (const int rank : {0, 2, 5, 7}) EXPECT_FALSE(layout.SpeaksForData(rank)) << rank;
  for (const int rank : {4, 6}) EXPECT_TRUE(layout.SpeaksForData(rank)) << rank;
  EXPECT_EQ(layout.CoordinatesOf(6), "pp 1, dp 1, tp 0");
  EXPECT_THAT(layout.Pipelines(), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                              ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_EQ(layout.EndsOfPipelines(), layout.Pipelines());
  EXPECT_THAT(RankLayout(*Mesh::Make(4, {.pipeline = 4}), TensorGrid()).EndsOfPipelines(),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1), ElementsAre(2)));
}

TEST(RankLayoutTest, HiddenStatesAreInParts) {
  EXPECT_EQ(Layout(8, TensorMode::k1d, 4).parts_of_hidden(), 1);
  EXPECT_EQ(Layout(8, TensorMode::k2d, 4).parts_of_hidden(), 4);
  EXPECT_EQ(Layout(8, TensorMode::k2Point5d, 8, 2).parts_of_hidden(), 8);
  EXPECT_EQ(Layout(8, TensorMode::k1d, 4).parts_of_batch(), 1);
  EXPECT_EQ(Layout(9, TensorMode::k2d, 9).parts_of_batch(), 3);
  EXPECT_EQ(Layout(18, TensorMode::k2Point5d, 18, 2).parts_of_batch(), 6);
  EXPECT_EQ(Layout(27, TensorMode::k3d, 27).parts_of_batch(), 9);
  EXPECT_EQ(RankLayout(*Mesh::Make(4, {.tensor = 4}), *TensorGrid::Make(TensorMode::k1d, 4),
                       {.sharing = SequenceSharing::kMegatron})
                .parts_of_hidden(),
            4);
}

TEST(RankLayoutTest, CoordinatesAreOfTheAxesThatHaveSeveralRanks) {
  EXPECT_EQ(RankLayout(1).CoordinatesOf(0), "dp 0");
  EXPECT_EQ(RankLayout(3).CoordinatesOf(2), "dp 2");
  EXPECT_EQ(Layout(8, TensorMode::k2Point5d, 8, 2).CoordinatesOf(5), "tp 5 (i 0, j 1, k 1)");
}

TEST(RankLayoutTest, NeighboursPartALine) {
  const RankLayout layout = Layout(8, TensorMode::k1d, 4);
  EXPECT_THAT(layout.Neighbours(2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                                                ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(layout.Neighbours(4), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
}

}  // namespace
}  // namespace gemini::trainer
