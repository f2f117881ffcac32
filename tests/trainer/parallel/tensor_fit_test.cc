// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_fit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using policies::TensorGrid;
using policies::TensorMode;
using ::testing::HasSubstr;

ModelSpec Model(int64_t kv_heads) {
  ModelSpec spec = {.vocab_size = 301, .width = 64};
  spec.embedding_width = 64;
  spec.attention.num_heads = 4;
  spec.attention.num_kv_heads = kv_heads;
  spec.attention.head_size = 16;
  spec.feed_forward.width = 256;
  return spec;
}

TensorGrid Square() { return *TensorGrid::Make(TensorMode::k2d, 4); }
TensorGrid Squares() { return *TensorGrid::Make(TensorMode::k2Point5d, 8, 2); }
TensorGrid Cube() { return *TensorGrid::Make(TensorMode::k3d, 8); }

TEST(TensorFitTest, AModelThatDoesNotDivideIsRefused) {
  const auto refused = [](const ModelSpec& spec, const TensorGrid& grid, int64_t batch,
                          const char* text) {
    EXPECT_THAT(CheckTensorGrid(spec, grid, batch),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  const TensorGrid of_9 = *TensorGrid::Make(TensorMode::k2d, 9);
  ModelSpec spec = Model(4);
  refused(spec, of_9, 9,
          "--tensor 2d of 9 ranks: its attention heads, 4, do not divide by 3: use --tensor-size 4 "
          "or 16");
  refused(spec, *TensorGrid::Make(TensorMode::k2Point5d, 18, 2), 9,
          "--tensor 2.5d of 18 ranks: its attention heads, 4, do not divide by 3: use "
          "--tensor-size 8 or 32");
  refused(spec, *TensorGrid::Make(TensorMode::k3d, 27), 9,
          "--tensor 3d of 27 ranks: its attention heads, 4, do not divide by 3: use --tensor-size "
          "8 or 64");
  refused(spec, Square(), 3, "--tensor 2d of 4 ranks: --batch 3 does not divide by 2: use 2 or 4");
  refused(spec, Squares(), 6, "--batch 6 does not divide by 4: use 4 or 8");
  refused(spec, Cube(), 2, "--batch 2 does not divide by 4: use 4");
  refused(Model(2), *TensorGrid::Make(TensorMode::k2d, 16), 4,
          "its key and value heads, 2, do not divide by 4: use --tensor-size 4");
  spec.feed_forward.width = 90;
  EXPECT_OK(CheckTensorGrid(spec, Square(), 2));
  refused(spec, Cube(), 4,
          "between its feed-forward matrices, 90, do not divide by 4: use --tensor-size 1");
  spec.feed_forward.width = 256;
  spec.vocab_size = 9;
  EXPECT_OK(CheckTensorGrid(spec, Square(), 2));
  spec.vocab_size = 6;
  refused(spec, Cube(), 4, "its vocabulary of 6 leaves the last rank without a row");
}

TEST(TensorFitTest, LayersThatNoGridSharesAreRefused) {
  const auto refused = [](const ModelSpec& spec, const char* text) {
    EXPECT_THAT(CheckTensorGrid(spec, Square(), /*batch=*/8),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(text)));
  };
  EXPECT_OK(CheckTensorGrid(Model(4), Square(), /*batch=*/8));
  ModelSpec experts = Model(4);
  experts.experts.emplace().count = 8;
  refused(experts,
          "--tensor 2d of a model with 8 experts (num_experts or num_local_experts in its "
          "config.json): use --tensor 1d");
  ModelSpec projected = Model(4);
  projected.embedding_width = 32;
  refused(projected,
          "whose embedding of width 32 (word_embed_proj_dim in its config.json) is "
          "projected to 64: use --tensor 1d");
}

}  // namespace
}  // namespace gemini::trainer
