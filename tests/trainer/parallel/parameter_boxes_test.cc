// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/parameter_boxes.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using policies::TensorGrid;
using policies::TensorMode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using enum policies::TensorAxis;
using enum policies::TensorMode;

TensorGrid Grid(TensorMode mode, int64_t num_ranks, int64_t depth = 1) {
  return *TensorGrid::Make(mode, num_ranks, depth);
}

TEST(ParameterBoxesTest, ColumnsOfAMatrixLieCloserTogetherInARanksTensor) {
  const ParameterBoxes boxes({4, 6}, {{}, {.axes = {kJ}}}, Grid(k1d, 2));
  EXPECT_THAT(boxes.local_sizes(), ElementsAre(4, 3));
  EXPECT_THAT(boxes.BoxesOf(0), ElementsAre(Box{{0, 0}, {4, 3}, 0}));
  EXPECT_THAT(boxes.BoxesOf(1), ElementsAre(Box{{0, 3}, {4, 6}, 0}));
}

// Query, key and value of two heads each, in one matrix [in, out].
TEST(ParameterBoxesTest, AJoinedMatrixHasABoxForEachSection) {
  const ParameterBoxes boxes({4, 24}, {{}, {.axes = {kJ}, .sections = {8, 8, 8}}}, Grid(k1d, 2));
  EXPECT_THAT(boxes.local_sizes(), ElementsAre(4, 12));
  EXPECT_THAT(boxes.BoxesOf(1), ElementsAre(Box{{0, 4}, {4, 8}, 0}, Box{{0, 12}, {4, 16}, 4},
                                            Box{{0, 20}, {4, 24}, 8}));
}

TEST(ParameterBoxesTest, RowsThatAreNoMultipleArePaddedAtTheEnd) {
  const ParameterBoxes boxes({301, 2}, {{.axes = {kJ}}, {}}, Grid(k1d, 4));
  EXPECT_THAT(boxes.local_sizes(), ElementsAre(76, 2));
  EXPECT_THAT(boxes.BoxesOf(3), ElementsAre(Box{{228, 0}, {301, 2}, 0}));
  // Nothing is left for the last two.
  const ParameterBoxes few({2}, {{.axes = {kJ}}}, Grid(k1d, 4));
  EXPECT_THAT(few.local_sizes(), ElementsAre(1));
  EXPECT_THAT(few.BoxesOf(2), IsEmpty());
}

TEST(ParameterBoxesTest, ACoarseAxisComesBeforeAFineOne) {
  // Of 3d, rows k coarse and i fine, columns j.
  const ParameterBoxes boxes({8, 4}, {{.axes = {kK, kI}}, {.axes = {kJ}}}, Grid(k3d, 8));
  // k 1, j 0, i 1.
  EXPECT_THAT(boxes.BoxesOf(5), ElementsAre(Box{{6, 0}, {8, 2}, 0}));
  // k 0, j 1, i 1.
  EXPECT_THAT(boxes.BoxesOf(3), ElementsAre(Box{{2, 2}, {4, 4}, 0}));
}

TEST(ParameterBoxesTest, FewHeadsAreCopiedToNeighbours) {
  const ParameterBoxes boxes({6}, {{.axes = {kJ}, .most_parts = 2}}, Grid(k1d, 4));
  EXPECT_THAT(boxes.local_sizes(), ElementsAre(3));
  EXPECT_THAT(boxes.BoxesOf(0), ElementsAre(Box{{0}, {3}, 0}));
  EXPECT_EQ(boxes.BoxesOf(1), boxes.BoxesOf(0));
  EXPECT_THAT(boxes.BoxesOf(2), ElementsAre(Box{{3}, {6}, 0}));
  EXPECT_TRUE(boxes.IsFirstOf(0));
  EXPECT_FALSE(boxes.IsFirstOf(1));
  EXPECT_TRUE(boxes.IsFirstOf(2));
}

TEST(ParameterBoxesTest, TheFirstOfACopyIsAtCoordinateZero) {
  const TensorGrid layers = Grid(k2Point5d, 8, 2);
  const ParameterBoxes vector({4}, {{.axes = {kJ}}}, layers);
  // In either layer.
  EXPECT_TRUE(vector.IsFirstOf(1));
  EXPECT_TRUE(vector.IsFirstOf(5));
  EXPECT_FALSE(vector.IsFirstOf(3));
  const ParameterBoxes whole({4}, {{}}, Grid(k3d, 8));
  EXPECT_TRUE(whole.IsFirstOf(0));
  for (int64_t place = 1; place < 8; ++place) EXPECT_FALSE(whole.IsFirstOf(place));
}

struct Case {
  std::string name;
  TensorGrid grid;
  std::vector<int64_t> sizes;
  std::vector<DimensionSplit> splits;
};

std::vector<Case> Cases() {
  return {
      {"whole", Grid(k1d, 3), {5, 4}, {{}, {}}},
      {"rows_1d", Grid(k1d, 3), {7, 4}, {{.axes = {kJ}}, {}}},
      {"joined_1d", Grid(k1d, 2), {3, 24}, {{}, {.axes = {kJ}, .sections = {12, 6, 6}}}},
      {"joined_rows_1d", Grid(k1d, 2), {24, 3}, {{.axes = {kJ}, .sections = {12, 6, 6}}, {}}},
      {"joined_copies_1d",
       Grid(k1d, 2),
       {3, 24},
       {{}, {.axes = {kJ}, .sections = {12, 6, 6}, .most_parts = 1}}},
      {"copies_1d", Grid(k1d, 6), {9, 2}, {{.axes = {kJ}, .most_parts = 3}, {}}},
      {"matrix_2d", Grid(k2d, 9), {11, 7}, {{.axes = {kI}}, {.axes = {kJ}}}},
      {"joined_2d", Grid(k2d, 4), {6, 12}, {{.axes = {kI}}, {.axes = {kJ}, .sections = {4, 4, 4}}}},
      {"vector_2d", Grid(k2d, 9), {7}, {{.axes = {kJ}}}},
      {"matrix_2_5d", Grid(k2Point5d, 8, 2), {6, 4}, {{.axes = {kI}}, {.axes = {kJ}}}},
      {"matrix_3d", Grid(k3d, 8), {10, 6}, {{.axes = {kK, kI}}, {.axes = {kJ}}}},
      {"vector_3d", Grid(k3d, 27), {10}, {{.axes = {kK}}}},
  };
}

// Each element is in one box of the first ranks, and lies in its rank's tensor at a place of its
// own. Copies have the boxes of a first one. So it is in each layer of a 2.5d grid.
TEST(ParameterBoxesTest, FirstRanksHaveEachElementOnce) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const ParameterBoxes boxes(c.sizes, c.splits, c.grid);
    const int64_t depth = c.grid.mode() == k2Point5d ? c.grid.size(kK) : 1;
    int64_t num_elements = 1, num_local = 1;
    for (const int64_t size : c.sizes) num_elements *= size;
    for (const int64_t size : boxes.local_sizes()) num_local *= size;
    for (int64_t layer = 0; layer < depth; ++layer) {
      std::set<std::vector<int64_t>> seen;
      std::vector<std::vector<Box>> of_first;
      const int64_t ranks = c.grid.num_ranks() / depth;
      for (int64_t place = layer * ranks; place < (layer + 1) * ranks; ++place) {
        if (!boxes.IsFirstOf(place)) continue;
        of_first.push_back(boxes.BoxesOf(place));
        std::set<int64_t> local;
        for (const Box& box : of_first.back()) {
          std::vector<int64_t> at = box.begin;
          while (true) {
            EXPECT_TRUE(seen.insert(at).second);
            int64_t offset = 0;
            for (size_t d = 0; d < at.size(); ++d) {
              offset = offset * boxes.local_sizes()[d] + at[d] - box.begin[d];
            }
            EXPECT_TRUE(local.insert(box.local_offset + offset).second);
            size_t d = at.size();
            while (d > 0 && ++at[d - 1] == box.end[d - 1]) {
              at[d - 1] = box.begin[d - 1];
              --d;
            }
            if (d == 0) break;
          }
        }
        EXPECT_TRUE(local.empty() || (*local.begin() >= 0 && *local.rbegin() < num_local));
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), num_elements);
      for (int64_t place = layer * ranks; place < (layer + 1) * ranks; ++place) {
        EXPECT_THAT(of_first, ::testing::Contains(boxes.BoxesOf(place)));
      }
    }
  }
}

// The same elements as by counting through each box, in any window of either tensor.
TEST(ParameterBoxesTest, RunsInAWindowAreThoseOfTheBoxes) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const ParameterBoxes boxes(c.sizes, c.splits, c.grid);
    for (int64_t place = 0; place < c.grid.num_ranks(); ++place) {
      std::map<int64_t, int64_t> local_of_whole;
      for (const Box& box : boxes.BoxesOf(place)) {
        std::vector<int64_t> at = box.begin;
        size_t d = 0;
        do {
          int64_t whole = 0, local = 0;
          for (d = 0; d < at.size(); ++d) {
            whole = whole * c.sizes[d] + at[d];
            local = local * boxes.local_sizes()[d] + at[d] - box.begin[d];
          }
          local_of_whole[whole] = box.local_offset + local;
          while (d > 0 && ++at[d - 1] == box.end[d - 1]) {
            at[d - 1] = box.begin[d - 1];
            --d;
          }
        } while (d > 0);
      }
      for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 1000}, {0, 7}, {5, 13}, {6, 6}, {11, 12}, {17, 50}}) {
        std::map<int64_t, int64_t> in_whole, in_local, expected_whole, expected_local;
        const auto add_to = [](std::map<int64_t, int64_t>& found) {
          return [&found](const BoxRun& run) {
            for (int64_t i = 0; i < run.count; ++i) {
              EXPECT_TRUE(found.emplace(run.whole_offset + i, run.local_offset + i).second);
            }
          };
        };
        boxes.VisitRunsInWhole(place, begin, end, add_to(in_whole));
        boxes.VisitRunsInLocal(place, begin, end, add_to(in_local));
        for (const auto& [whole, local] : local_of_whole) {
          if (whole >= begin && whole < end) expected_whole[whole] = local;
          if (local >= begin && local < end) expected_local[whole] = local;
        }
        EXPECT_EQ(in_whole, expected_whole) << place << ": " << begin << " to " << end;
        EXPECT_EQ(in_local, expected_local) << place << ": " << begin << " to " << end;
      }
    }
  }
}

TEST(ParameterBoxesTest, RowsThatAreWholeAreOneRun) {
  const ParameterBoxes rows({6, 4}, {{.axes = {kJ}}, {}}, Grid(k1d, 2));
  std::vector<BoxRun> runs;
  rows.VisitRunsInWhole(1, 0, 100, [&](const BoxRun& run) { runs.push_back(run); });
  EXPECT_THAT(runs, ElementsAre(BoxRun{12, 0, 12}));
}

}  // namespace
}  // namespace gemini::trainer
