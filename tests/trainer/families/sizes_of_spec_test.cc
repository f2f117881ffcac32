// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/sizes_of_spec.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/parameter_count.h"

namespace gemini::trainer {
namespace {

class SizesOfSpecTest : public ::testing::TestWithParam<const char*> {};

// All parameters but norms and biases.
TEST_P(SizesOfSpecTest, MatricesHaveNearlyAllParameters) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(GetParam(), "config.json"));
  const auto all = static_cast<double>(NumParameters(config.spec));
  const double counted = SizesOf(config.spec, 128).parameters();
  EXPECT_LE(counted, all);
  EXPECT_GE(counted, 0.998 * all);
}

INSTANTIATE_TEST_SUITE_P(
    Models, SizesOfSpecTest,
    ::testing::Values(
        R"({"model_type":"gpt2"})", R"({"model_type":"gpt2","tie_word_embeddings":false})",
        R"({"model_type":"opt","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,
            "ffn_dim":4096,"word_embed_proj_dim":512,"do_layer_norm_before":false})",
        R"({"model_type":"llama","num_hidden_layers":3,"num_key_value_heads":8})",
        R"({"model_type":"gemma2","num_hidden_layers":3})",
        R"({"model_type":"mixtral","num_hidden_layers":3})",
        R"({"model_type":"qwen2_moe","num_hidden_layers":4,"decoder_sparse_step":2})",
        R"({"model_type":"qwen3_moe","num_hidden_layers":3})"));

// Its layers are narrow, so that biases are more of them.
TEST(SizesOfSpecTest, MatricesHaveNearlyAllParametersOfAPairTrunk) {
  for (const char* const task : {"MaskedMsa", "Distogram"}) {
    ASSERT_OK_AND_ASSIGN(
        const HfConfig config,
        ParseHfConfig(absl::StrCat(R"({"model_type":"pair_trunk","architectures":["PairTrunkFor)",
                                   task, R"("]})"),
                      "c"));
    const auto all = static_cast<double>(NumParameters(config.spec));
    const double counted = SizesOf(config.spec, 128).parameters();
    EXPECT_LE(counted, all);
    EXPECT_GE(counted, 0.99 * all);
  }
}

TEST(SizesOfSpecTest, ATokenIsComputedByTheExpertsThatItChooses) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config,
                       ParseHfConfig(R"({"model_type":"mixtral","num_hidden_layers":1})", "c"));
  const ModelSpec& spec = config.spec;
  const policies::BlockSizes block = SizesOf(spec, 128).blocks[0];
  const double width = static_cast<double>(spec.width);
  const double expert = 3 * width * static_cast<double>(spec.experts->width);
  EXPECT_DOUBLE_EQ(
      block.flops_of_token(),
      2 * (width * (2 * block.query_width + 2 * block.key_width) + 8 * width + 2 * expert) +
          4 * block.query_width * 64);
  EXPECT_DOUBLE_EQ(block.gated_width, 2 * static_cast<double>(spec.experts->width));
  // The router and the experts read one tensor, as query, key and value do.
  int num_read = 0;
  for (const policies::MatrixSizes& matrix : block.matrices) {
    num_read += !matrix.leads_out && !matrix.shares_exchange;
  }
  EXPECT_EQ(num_read, 2);
}

TEST(SizesOfSpecTest, TheResultsOfASharedExpertAreAddedToThoseOfTheOthers) {
  ASSERT_OK_AND_ASSIGN(
      const HfConfig config,
      ParseHfConfig(R"({"model_type":"qwen2_moe","num_hidden_layers":1,"intermediate_size":5632,
                        "moe_intermediate_size":1408,"shared_expert_intermediate_size":2112})",
                    "c"));
  const policies::ModelSizes sizes = SizesOf(config.spec, 128);
  int num_exchanged = 0;
  for (const policies::MatrixSizes& matrix : sizes.blocks[0].matrices) {
    num_exchanged += matrix.leads_out && !matrix.shares_exchange;
  }
  EXPECT_EQ(num_exchanged, 2);  // With that of attention.
  EXPECT_EQ(sizes.feed_width, 704);
}

TEST(SizesOfSpecTest, AWindowBoundsWhatATokenSees) {
  ASSERT_OK_AND_ASSIGN(
      const HfConfig config,
      ParseHfConfig(R"({"model_type":"mistral","num_hidden_layers":1,"sliding_window":100})", "c"));
  EXPECT_EQ(SizesOf(config.spec, 128).blocks[0].seen_tokens, 64);
  EXPECT_EQ(SizesOf(config.spec, 1024).blocks[0].seen_tokens, 100);
}

// As trainer/parallel/model_of_ranks.h refuses.
TEST(SizesOfSpecTest, ModelsThatAreNotCausalAreSharedInFewerWays) {
  struct Case {
    const char* model_type;
    const char* task;
    policies::SharingWays ways;
  };
  const policies::SharingWays of_texts = {.in_grids = false, .on_sequence_axis = false};
  const policies::SharingWays of_images = {
      .in_grids = false, .between_layers = false, .on_sequence_axis = false};
  for (const Case& c : std::vector<Case>{{"gpt2", "causal", {}},
                                         {"gpt2", "sequence-classification", of_texts},
                                         {"bert", "masked", of_texts},
                                         {"bert", "sequence-classification", of_texts},
                                         {"vit", "image-classification", of_images},
                                         {"pair_trunk", "masked", of_images},
                                         {"pair_trunk", "distogram", of_images}}) {
    SCOPED_TRACE(absl::StrCat(c.model_type, ", ", c.task));
    ASSERT_OK_AND_ASSIGN(const HfConfig config,
                         ParseHfConfig(absl::StrCat(R"({"model_type":")", c.model_type, R"("})"),
                                       "c", {.name = c.task}));
    EXPECT_EQ(SharingWaysOf(config.spec), c.ways);
    policies::SharingWays foretold = c.ways;
    foretold.in_lines = !config.spec.pair_trunk.has_value();
    EXPECT_EQ(SizesOf(config.spec, 64).sharing, foretold);
  }
}

TEST(SizesOfSpecTest, WhatRanksDivideIsThatOfTheFamily) {
  ASSERT_OK_AND_ASSIGN(
      const HfConfig config,
      ParseHfConfig(R"({"model_type":"llama","num_hidden_layers":3,"num_key_value_heads":8})",
                    "c"));
  const policies::ModelSizes sizes = SizesOf(config.spec, 128);
  EXPECT_EQ(sizes.num_heads, 32);
  EXPECT_EQ(sizes.num_key_heads, 8);
  EXPECT_TRUE(sizes.copies_key_heads);
  EXPECT_EQ(sizes.feed_width, 11008);
  EXPECT_EQ(sizes.width, 4096);
  EXPECT_FALSE(sizes.tied_head);
  EXPECT_FALSE(sizes.has_experts);
  ASSERT_OK_AND_ASSIGN(const HfConfig joined,
                       ParseHfConfig(R"({"model_type":"phi3","pad_token_id":0})", "c"));
  EXPECT_FALSE(SizesOf(joined.spec, 128).copies_key_heads);
}

}  // namespace
}  // namespace gemini::trainer
