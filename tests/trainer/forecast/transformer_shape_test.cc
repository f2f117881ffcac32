// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/transformer_shape.h"

#include <string>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TransformerShape Gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  return {.num_layers = layers,
          .hidden = hidden,
          .num_heads = heads,
          .inner = 4 * hidden,
          .embedding_size = hidden};
}

TransformerShape Opt(int64_t layers, int64_t hidden, int64_t heads) {
  TransformerShape shape = Gpt2(layers, hidden, heads);
  shape.family = TransformerFamily::kOpt;
  shape.vocabulary = 50272;
  shape.num_positions = 2048 + 2;  // The table's first two rows are for padding.
  shape.activation_keeps_input = false;
  return shape;
}

// The sums over the tensors of the published checkpoints.
TEST(TransformerShapeTest, CountsTheParametersOfPublishedModels) {
  EXPECT_EQ(NumParameters(Gpt2(12, 768, 12)), 124'439'808);
  EXPECT_EQ(NumParameters(Gpt2(48, 1600, 25)), 1'557'611'200);
  EXPECT_EQ(NumParameters(Opt(12, 768, 12)), 125'239'296);
  EXPECT_EQ(NumParameters(Opt(32, 4096, 32)), 6'658'473'984);
  EXPECT_EQ(NumParameters(Opt(40, 5120, 40)), 12'853'473'280);

  TransformerShape opt_350m = Opt(24, 1024, 16);
  opt_350m.embedding_size = 512;
  opt_350m.norm_before = false;
  opt_350m.final_norm = false;
  EXPECT_EQ(NumParameters(opt_350m), 331'196'416);
}

std::vector<std::string> NamesOf(const TransformerShape& shape) {
  std::vector<std::string> names;
  for (const ShapedTensor& tensor : TensorsOf(shape).tensors) names.push_back(tensor.name);
  return names;
}

TEST(TransformerShapeTest, NamesTheTensorsOfGpt2InTheOrderOfTheirFirstUse) {
  EXPECT_THAT(NamesOf(Gpt2(1, 64, 4)),
              ElementsAre("transformer.wte.weight", "transformer.wpe.weight",
                          "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
                          "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                          "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
                          "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
                          "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias",
                          "transformer.h.0.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.bias",
                          "transformer.ln_f.weight", "transformer.ln_f.bias"));
}

TEST(TransformerShapeTest, PutsTheNormsOfAPostNormModelWhereTheyAreUsed) {
  TransformerShape shape = Opt(1, 64, 4);
  shape.embedding_size = 32;
  shape.norm_before = false;
  shape.final_norm = false;
  shape.bias = false;
  shape.tied_head = false;
  const std::string block = "model.decoder.layers.0.";
  EXPECT_THAT(
      NamesOf(shape),
      ElementsAre("model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight",
                  "model.decoder.project_in.weight", block + "self_attn.q_proj.weight",
                  block + "self_attn.k_proj.weight", block + "self_attn.v_proj.weight",
                  block + "self_attn.out_proj.weight", block + "self_attn_layer_norm.weight",
                  block + "self_attn_layer_norm.bias", block + "fc1.weight", block + "fc2.weight",
                  block + "final_layer_norm.weight", block + "final_layer_norm.bias",
                  "model.decoder.project_out.weight", "lm_head.weight"));
}

TEST(TransformerShapeTest, ATiedHeadIsTheTokenEmbedding) {
  TransformerShape shape = Gpt2(2, 64, 4);
  EXPECT_EQ(TensorsOf(shape).head.weight, TensorsOf(shape).token_embedding.weight);
  shape.tied_head = false;
  const TransformerTensors untied = TensorsOf(shape);
  EXPECT_EQ(untied.head.weight, static_cast<int32_t>(untied.tensors.size()) - 1);
}

TEST(TransformerShapeTest, RefusesDimensionsThatMakeNoModel) {
  TransformerShape shape = Gpt2(2, 64, 4);
  EXPECT_OK(CheckShape(shape));
  shape.num_heads = 5;
  EXPECT_THAT(CheckShape(shape), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("64 is not divisible by num_heads 5")));
  shape = Gpt2(0, 64, 4);
  EXPECT_THAT(CheckShape(shape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 layers")));
  shape = Gpt2(1 << 14, 1 << 22, 4);
  EXPECT_THAT(CheckShape(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  shape = Gpt2(2, 64, 4);
  shape.vocabulary = 0;
  EXPECT_THAT(CheckShape(shape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocabulary = 0")));
}

}  // namespace
}  // namespace gemini::policies
