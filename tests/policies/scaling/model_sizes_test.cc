// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/model_sizes.h"

#include "gtest/gtest.h"
#include "tests/policies/scaling/square_model.h"

namespace gemini::policies {
namespace {

// Narayanan et al. (SC 2021, arXiv:2104.04473), appendix: a block has 12 h^2 parameters and takes
// 24 h^2 + 4 s h FLOP a token forward, where each token attends to all s. Backward takes twice as
// many.
TEST(ModelSizesTest, ABlockHasTheParametersAndTheArithmeticThatArePublished) {
  const ModelSizes model = SquareModel({.blocks = 96, .width = 12288, .sequence = 2048});
  EXPECT_DOUBLE_EQ(model.blocks[0].parameters(), 12.0 * 12288 * 12288);
  BlockSizes full = model.blocks[0];
  full.seen_tokens = 2048;
  EXPECT_DOUBLE_EQ(full.flops_of_token(), 24.0 * 12288 * 12288 + 4.0 * 2048 * 12288);
}

TEST(ModelSizesTest, Gpt3Has175BillionParameters) {
  ModelSizes model = SquareModel({.blocks = 96, .width = 12288, .vocabulary = 51200});
  EXPECT_NEAR(model.parameters(), 174.6e9, 0.1e9);
  const double tied = model.parameters();
  model.tied_head = false;
  EXPECT_DOUBLE_EQ(model.parameters() - tied, 51200.0 * 12288);
  // Both ends have a projection.
  model.projection_parameters = 1000;
  EXPECT_DOUBLE_EQ(model.parameters() - tied, 51200.0 * 12288 + 2000);
}

// Korthikanti et al. (MLSys 2023, arXiv:2205.05198), section 4: 34 s b h bytes a block where scores
// are computed again, of which masks of dropout, which are counted here and not kept, take two.
TEST(ModelSizesTest, ABlockKeepsWhatIsPublishedButForMasks) {
  const BlockSizes block = SquareModel({.width = 512}).blocks[0];
  EXPECT_DOUBLE_EQ(2 * (block.kept_whole(512) + block.kept_between()), (34 - 2) * 512.0);
  // In 1d 10 of them are whole in each rank, the masks among them.
  EXPECT_DOUBLE_EQ(2 * block.kept_whole(512), (10 - 2) * 512.0);
}

TEST(ModelSizesTest, ExpertsHoldMoreThanTheyCompute) {
  BlockSizes block;
  block.matrices = {{.in = 8, .out = 32, .copies = 16, .token_share = 0.125}};
  EXPECT_DOUBLE_EQ(block.parameters(), 8 * 32 * 16);
  EXPECT_DOUBLE_EQ(block.flops_of_token(), 2 * 8 * 32 * 2);
  EXPECT_DOUBLE_EQ(block.kept_between(), 32 * 2);
}

}  // namespace
}  // namespace gemini::policies
