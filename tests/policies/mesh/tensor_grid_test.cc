// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/tensor_grid.h"

#include <set>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum TensorAxis;
using enum TensorMode;

TensorGrid MakeGrid(TensorMode mode, int64_t num_ranks, int64_t depth = 1) {
  return *TensorGrid::Make(mode, num_ranks, depth);
}

TEST(TensorGridTest, NeighboursShareTheSlowerAxes) {
  EXPECT_THAT(MakeGrid(k1d, 3).LineOf(1, kJ), ElementsAre(0, 1, 2));

  // 3 = 1 * 2 + 1.
  EXPECT_THAT(MakeGrid(k2d, 4).LineOf(3, kJ), ElementsAre(2, 3));
  EXPECT_THAT(MakeGrid(k2d, 4).LineOf(3, kI), ElementsAre(1, 3));

  // 14 = 1 * 9 + 1 * 3 + 2.
  const TensorGrid layers = MakeGrid(k2Point5d, 18, 2);
  EXPECT_THAT(layers.LineOf(14, kJ), ElementsAre(12, 13, 14));
  EXPECT_THAT(layers.LineOf(14, kI), ElementsAre(11, 14, 17));
  EXPECT_THAT(layers.LineOf(14, kK), ElementsAre(5, 14));

  // 5 = 1 * 4 + 0 * 2 + 1.
  const TensorGrid cube = MakeGrid(k3d, 8);
  EXPECT_THAT(cube.LineOf(5, kI), ElementsAre(4, 5));
  EXPECT_THAT(cube.LineOf(5, kJ), ElementsAre(5, 7));
  EXPECT_THAT(cube.LineOf(5, kK), ElementsAre(1, 5));
}

TEST(TensorGridTest, CoordinatesTellPlacesApart) {
  for (const TensorGrid& grid : {TensorGrid(), MakeGrid(k1d, 5), MakeGrid(k2d, 9),
                                 MakeGrid(k2Point5d, 12, 3), MakeGrid(k3d, 27)}) {
    std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
    for (int64_t place = 0; place < grid.num_ranks(); ++place) {
      const std::tuple<int64_t, int64_t, int64_t> at = {
          grid.coordinate(place, kI), grid.coordinate(place, kJ), grid.coordinate(place, kK)};
      EXPECT_TRUE(seen.insert(at).second) << place;
      EXPECT_LT(std::get<0>(at), grid.size(kI));
      EXPECT_LT(std::get<1>(at), grid.size(kJ));
      EXPECT_LT(std::get<2>(at), grid.size(kK));
    }
  }
}

TEST(TensorGridTest, OnlyLayersOf2Point5dHaveTheSameParameters) {
  EXPECT_FALSE(MakeGrid(k2Point5d, 8, 2).DividesParameters(kK));
  EXPECT_TRUE(MakeGrid(k2Point5d, 8, 2).DividesParameters(kI));
  EXPECT_TRUE(MakeGrid(k3d, 8).DividesParameters(kK));
}

TEST(TensorGridTest, OtherNumbersOfRanksAreRefusedWithTheNearest) {
  const auto refused = [](TensorMode mode, int64_t num_ranks, int64_t depth, const char* text) {
    EXPECT_THAT(TensorGrid::Make(mode, num_ranks, depth).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(k2d, 8, 1, "2d takes q^2 ranks, which 8 are not: use 4 or 9");
  refused(k3d, 4, 1, "3d takes q^3 ranks, which 4 are not: use 1 or 8");
  refused(k2Point5d, 12, 2, "2.5d of depth 2 takes 2 q^2 ranks, which 12 are not: use 8 or 18");
  refused(k2Point5d, 1, 2, "which 1 is not: use 2");
  refused(k1d, 8, 2, "a depth of 2 with 1d: only 2.5d has one");
  refused(k1d, 0, 1, "1d of 0 ranks and depth 1: both are at least 1");
  refused(k2Point5d, 4, 0, "2.5d of 4 ranks and depth 0");
  EXPECT_OK(TensorGrid::Make(k2d, 1, 1));
}

}  // namespace
}  // namespace gemini::policies
