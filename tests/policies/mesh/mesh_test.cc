// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/mesh.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum MeshAxis;

Mesh MakeMesh(int64_t num_ranks, const MeshSizes& sizes,
              const MeshOrder& order = kDefaultMeshOrder) {
  return *Mesh::Make(num_ranks, sizes, order);
}

TEST(MeshTest, DataTakesWhatTheOthersLeave) {
  const Mesh mesh = MakeMesh(24, {.pipeline = 2, .sequence = 1, .tensor = 4});
  EXPECT_EQ(mesh.size(kData), 3);
  EXPECT_EQ(mesh.num_ranks(), 24);
  EXPECT_EQ(mesh.ToString(), "pp 2 x dp 3 x sp 1 x tp 4");
  EXPECT_EQ(MakeMesh(1, {}).ToString(), "pp 1 x dp 1 x sp 1 x tp 1");
}

// 16 = 1 * 12 + 1 * 4 + 0.
TEST(MeshTest, ARankCountsItsCoordinates) {
  const Mesh mesh = MakeMesh(24, {.pipeline = 2, .sequence = 1, .tensor = 4});
  EXPECT_EQ(mesh.coordinate(16, kPipeline), 1);
  EXPECT_EQ(mesh.coordinate(16, kData), 1);
  EXPECT_EQ(mesh.coordinate(16, kSequence), 0);
  EXPECT_EQ(mesh.coordinate(16, kTensor), 0);
  EXPECT_THAT(mesh.GroupOf(16, {kTensor}), ElementsAre(16, 17, 18, 19));
  EXPECT_THAT(mesh.GroupOf(16, {kData}), ElementsAre(12, 16, 20));
  EXPECT_THAT(mesh.GroupOf(17, {kPipeline, kData}), ElementsAre(1, 5, 9, 13, 17, 21));
  EXPECT_THAT(mesh.GroupOf(17, {}), ElementsAre(17));
}

TEST(MeshTest, AnotherOrderPutsOtherRanksSideBySide) {
  ASSERT_OK_AND_ASSIGN(const MeshOrder order, ParseMeshOrder("tp,sp,dp,pp"));
  const Mesh mesh = MakeMesh(8, {.pipeline = 2, .sequence = 1, .tensor = 2}, order);
  EXPECT_THAT(mesh.GroupOf(0, {kPipeline}), ElementsAre(0, 1));
  EXPECT_THAT(mesh.GroupOf(0, {kTensor}), ElementsAre(0, 4));
  // By the mesh's order, however the axes are named.
  EXPECT_EQ(mesh.GroupOf(5, {kPipeline, kTensor}), mesh.GroupOf(5, {kTensor, kPipeline}));
  EXPECT_EQ(mesh.ToString(), "tp 2 x sp 1 x dp 2 x pp 2");
}

// For each set of axes: every rank is in one group, whose members differ along these axes alone.
TEST(MeshTest, GroupsPartTheRanks) {
  for (const MeshSizes& sizes : {MeshSizes{1, 1, 1}, MeshSizes{2, 3, 2}, MeshSizes{1, 4, 3}}) {
    for (const char* text : {"pp,dp,sp,tp", "dp,pp,tp,sp"}) {
      ASSERT_OK_AND_ASSIGN(const MeshOrder order, ParseMeshOrder(text));
      const Mesh mesh = MakeMesh(sizes.pipeline * sizes.sequence * sizes.tensor * 2, sizes, order);
      for (int set = 0; set < 1 << kNumMeshAxes; ++set) {
        std::vector<MeshAxis> axes;
        for (const MeshAxis axis : kDefaultMeshOrder) {
          if ((set >> static_cast<int>(axis) & 1) != 0) axes.push_back(axis);
        }
        std::set<int64_t> seen;
        int64_t lowest = -1;
        for (const std::vector<int64_t>& group : mesh.Groups(axes)) {
          EXPECT_TRUE(std::ranges::is_sorted(group));
          EXPECT_GT(group.front(), lowest);
          lowest = group.front();
          for (const int64_t rank : group) {
            EXPECT_TRUE(seen.insert(rank).second);
            EXPECT_EQ(mesh.GroupOf(rank, axes), group);
            for (const MeshAxis axis : kDefaultMeshOrder) {
              if (std::ranges::find(axes, axis) != axes.end()) continue;
              EXPECT_EQ(mesh.coordinate(rank, axis), mesh.coordinate(group.front(), axis));
            }
          }
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()), mesh.num_ranks());
      }
    }
  }
}

TEST(MeshTest, SizesThatDoNotDivideAreRefusedWithTheirProduct) {
  EXPECT_THAT(Mesh::Make(6, {.pipeline = 2, .tensor = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("6 ranks do not divide into pp 2 x sp 1 x tp 2 = 4: start 4 or 8 "
                                 "ranks, or change these sizes")));
  EXPECT_THAT(
      Mesh::Make(1, {.tensor = 2}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("1 rank does not divide into pp 1 x sp 1 x tp 2 = 2: start 2 ranks")));
  EXPECT_THAT(Mesh::Make(4, {.sequence = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sp 0")));
  EXPECT_THAT(Mesh::Make(0, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  // A product that no number holds.
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_THAT(Mesh::Make(kHuge, {kHuge, kHuge, kHuge}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MeshTest, AnOrderNamesEachAxisOnce) {
  ASSERT_OK_AND_ASSIGN(const MeshOrder order, ParseMeshOrder("dp,tp,pp,sp"));
  EXPECT_THAT(order, ElementsAre(kData, kTensor, kPipeline, kSequence));
  for (const char* text : {"", "pp", "pp,dp,sp", "pp,dp,sp,sp", "pp,dp,sp,xp", "pp,dp,sp,tp,tp"}) {
    EXPECT_THAT(ParseMeshOrder(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pp, dp, sp, tp")))
        << text;
  }
}

}  // namespace
}  // namespace gemini::policies
