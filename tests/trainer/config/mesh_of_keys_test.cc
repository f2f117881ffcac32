// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/mesh_of_keys.h"

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MeshOfKeysTest, DataTakesWhatTheOthersLeave) {
  SharingKeys keys;
  keys.pipeline = 2;
  keys.tensor = "2.5d";
  keys.tensor_size = 8;
  keys.tensor_depth = 2;
  ASSERT_OK_AND_ASSIGN(const policies::Mesh mesh, MeshOfKeys(keys, 48));
  EXPECT_EQ(mesh.ToString(), "pp 2 x dp 3 x sp 1 x tp 8");
  ASSERT_OK_AND_ASSIGN(const policies::TensorGrid grid, GridOfKeys(keys, 48));
  EXPECT_EQ(grid.mode(), policies::TensorMode::k2Point5d);
  EXPECT_EQ(grid.size(policies::TensorAxis::kK), 2);
  keys = {};
  keys.sequence_parallel = "ring";
  keys.rank_order = "sp,tp,pp,dp";
  ASSERT_OK_AND_ASSIGN(const policies::Mesh ring, MeshOfKeys(keys, 4));
  EXPECT_EQ(ring.ToString(), "sp 4 x tp 1 x pp 1 x dp 1");
  ASSERT_OK_AND_ASSIGN(const policies::TensorGrid one, GridOfKeys(keys, 4));
  EXPECT_EQ(one.num_ranks(), 1);
}

TEST(MeshOfKeysTest, KeysThatDoNotDivideAreNamed) {
  SharingKeys keys;
  keys.pipeline = 3;
  EXPECT_THAT(MeshOfKeys(keys, 4), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr("--pipeline"), HasSubstr("4 ranks"))));
  keys = {};
  keys.tensor = "2d";
  keys.tensor_size = 6;
  EXPECT_THAT(GridOfKeys(keys, 12), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("--tensor-size of --tensor 2d")));
  keys.tensor_size = 0;
  EXPECT_THAT(GridOfKeys(keys, 6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--tensor 2d: ")));
}

}  // namespace
}  // namespace gemini::trainer
