// SPDX-License-Identifier: Apache-2.0
// The oracle is the model itself, made without memory.
#include "trainer/families/parameter_count.h"

#include <string>

#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

class ParameterCountTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ParameterCountTest, CountsWhatTheModelHas) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(GetParam(), "config.json"));
  ASSERT_OK_AND_ASSIGN(
      const auto model,
      MakeStagedModel(config.spec, torch::dtype(torch::kFloat32).device(torch::kMeta)));
  int64_t expected = 0;
  for (const ParameterShape& parameter : ParameterShapesOf(*model)) {
    expected += parameter.num_elements();
  }
  EXPECT_EQ(NumParameters(config.spec), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ParameterCountTest,
    ::testing::Values(
        R"({"model_type":"gpt2"})",
        R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_inner":100,
            "tie_word_embeddings":false})",
        R"({"model_type":"opt"})",
        R"({"model_type":"opt","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,
            "ffn_dim":4096,"word_embed_proj_dim":512,"do_layer_norm_before":false})",
        R"({"model_type":"opt","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
            "ffn_dim":96,"enable_bias":false,"layer_norm_elementwise_affine":false,
            "tie_word_embeddings":false})",
        R"({"model_type":"llama","num_hidden_layers":3,"num_key_value_heads":8})",
        R"({"model_type":"llama","num_hidden_layers":3,"attention_bias":true,"mlp_bias":true,
            "tie_word_embeddings":true})",
        R"({"model_type":"mistral","num_hidden_layers":3})",
        R"({"model_type":"qwen2","num_hidden_layers":3})",
        R"({"model_type":"qwen3","num_hidden_layers":3})",
        R"({"model_type":"gemma","num_hidden_layers":3})",
        R"({"model_type":"gemma2","num_hidden_layers":3})",
        R"({"model_type":"gemma3_text","num_hidden_layers":3})",
        R"({"model_type":"cohere","num_hidden_layers":3})",
        R"({"model_type":"cohere","num_hidden_layers":3,"use_qk_norm":true})",
        R"({"model_type":"gpt_neox","hidden_size":768,"num_hidden_layers":3,
            "num_attention_heads":12})",
        R"({"model_type":"gpt_neox","hidden_size":768,"num_hidden_layers":3,
            "num_attention_heads":12,"use_parallel_residual":false,"attention_bias":false})",
        R"({"model_type":"phi3","num_hidden_layers":3,"num_key_value_heads":8})",
        R"({"model_type":"mixtral","num_hidden_layers":3})",
        R"({"model_type":"qwen2_moe","num_hidden_layers":4,"decoder_sparse_step":2})",
        R"({"model_type":"qwen3_moe","num_hidden_layers":3})", R"({"model_type":"vit"})",
        R"({"model_type":"vit","image_size":[12,20],"patch_size":[3,5],"num_channels":1,
            "qkv_bias":false,"num_labels":7})",
        R"({"model_type":"pair_trunk"})",
        R"({"model_type":"pair_trunk","vocab_size":11,"msa_width":12,"pair_width":9,
            "num_hidden_layers":2,"msa_num_heads":3,"msa_head_size":5,"triangle_num_heads":2,
            "triangle_head_size":7,"triangle_width":10,"outer_width":13,"transition_factor":6,
            "num_bins":15,"relative_positions":16,
            "architectures":["PairTrunkForDistogram"]})"));

}  // namespace
}  // namespace gemini::trainer
