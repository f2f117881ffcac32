// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_config.h"

#include <string>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HfConfigTest, AbsentKeysHaveTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const HfConfig gpt2, ParseHfConfig(R"({"model_type":"gpt2"})", "c"));
  EXPECT_EQ(gpt2.model_type(), "gpt2");
  EXPECT_EQ(gpt2.vocab_size(), 50257);
  EXPECT_EQ(gpt2.max_sequence(), 1024);
  EXPECT_TRUE(gpt2.tie_word_embeddings());
  EXPECT_EQ(std::get<Gpt2Config>(gpt2.model).n_inner, 3072);
  EXPECT_EQ(std::get<Gpt2Config>(gpt2.model).activation, Activation::kGeluTanh);

  ASSERT_OK_AND_ASSIGN(const HfConfig opt, ParseHfConfig(R"({"model_type":"opt"})", "c"));
  EXPECT_EQ(opt.model_type(), "opt");
  EXPECT_EQ(opt.vocab_size(), 50272);
  EXPECT_EQ(opt.max_sequence(), 2048);
  const OptConfig& config = std::get<OptConfig>(opt.model);
  EXPECT_EQ(config.pad_token_id, 1);
  EXPECT_EQ(config.word_embed_proj_dim, 768);
  EXPECT_FALSE(config.has_projections());
  EXPECT_TRUE(config.has_final_layer_norm());
}

TEST(HfConfigTest, KeysAreHonoured) {
  ASSERT_OK_AND_ASSIGN(const HfConfig gpt2, ParseHfConfig(R"({
      "model_type":"gpt2", "vocab_size":301, "n_positions":32, "n_embd":64, "n_layer":2,
      "n_head":4, "n_inner":null, "activation_function":"gelu", "resid_pdrop":0.2,
      "embd_pdrop":0.3, "attn_pdrop":0, "layer_norm_epsilon":1e-6, "scale_attn_weights":false,
      "scale_attn_by_inverse_layer_idx":true, "tie_word_embeddings":false,
      "add_cross_attention":false})",
                                                          "c"));
  const Gpt2Config& small = std::get<Gpt2Config>(gpt2.model);
  EXPECT_EQ(small.n_inner, 256);
  EXPECT_EQ(small.n_layer, 2);
  EXPECT_EQ(small.n_head, 4);
  EXPECT_EQ(small.activation, Activation::kGelu);
  EXPECT_EQ(small.resid_pdrop, 0.2);
  EXPECT_EQ(small.embd_pdrop, 0.3);
  EXPECT_EQ(small.attn_pdrop, 0.0);
  EXPECT_EQ(small.layer_norm_epsilon, 1e-6);
  EXPECT_FALSE(small.scale_attn_weights);
  EXPECT_TRUE(small.scale_attn_by_inverse_layer_idx);
  EXPECT_FALSE(gpt2.tie_word_embeddings());

  ASSERT_OK_AND_ASSIGN(const HfConfig opt, ParseHfConfig(R"({
      "model_type":"opt", "vocab_size":301, "hidden_size":64, "num_attention_heads":4,
      "num_hidden_layers":3, "ffn_dim":128, "max_position_embeddings":40,
      "word_embed_proj_dim":32, "do_layer_norm_before":false, "pad_token_id":null,
      "enable_bias":false, "layer_norm_elementwise_affine":false, "dropout":0.5,
      "attention_dropout":0.25, "_remove_final_layer_norm":true, "layerdrop":0.0})",
                                                         "c"));
  const OptConfig& post = std::get<OptConfig>(opt.model);
  EXPECT_TRUE(post.has_projections());
  EXPECT_FALSE(post.has_final_layer_norm());
  EXPECT_EQ(post.pad_token_id, -1);
  EXPECT_EQ(post.num_hidden_layers, 3);
  EXPECT_EQ(post.ffn_dim, 128);
  EXPECT_FALSE(post.enable_bias);
  EXPECT_FALSE(post.layer_norm_elementwise_affine);
  EXPECT_EQ(post.dropout, 0.5);
  EXPECT_EQ(post.attention_dropout, 0.25);
  EXPECT_EQ(opt.max_sequence(), 40);
}

TEST(HfConfigTest, TheGeneralNamesOfSizesAreUnderstood) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(R"({
      "model_type":"gpt2", "hidden_size":64, "num_hidden_layers":2, "num_attention_heads":4,
      "max_position_embeddings":48})",
                                                            "c"));
  const Gpt2Config& gpt2 = std::get<Gpt2Config>(config.model);
  EXPECT_EQ(gpt2.n_embd, 64);
  EXPECT_EQ(gpt2.n_layer, 2);
  EXPECT_EQ(gpt2.n_head, 4);
  EXPECT_EQ(config.max_sequence(), 48);
}

struct BadConfig {
  const char* name;
  const char* json;
  absl::StatusCode code;
  const char* message;
};
class BadHfConfigTest : public ::testing::TestWithParam<BadConfig> {};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
INSTANTIATE_TEST_SUITE_P(
    Configs, BadHfConfigTest,
    ::testing::ValuesIn(std::vector<BadConfig>{
        {"NotJson", "{", kInvalid, "not a JSON object"},
        {"Array", "[1]", kInvalid, "not a JSON object"},
        {"NoType", "{}", kInvalid, "has no model_type"},
        {"OtherType", R"({"model_type":"llama"})", kUnimplemented,
         "'llama'; supported are gpt2, opt"},
        {"OtherActivation", R"({"model_type":"opt","activation_function":"swish"})", kUnimplemented,
         "activation \"swish\"; supported are relu, gelu, gelu_new"},
        {"ZeroLayers", R"({"model_type":"gpt2","n_layer":0})", kInvalid, "n_layer = 0, expected"},
        {"NegativeVocab", R"({"model_type":"gpt2","vocab_size":-5})", kInvalid, "vocab_size = -5"},
        {"HugeWidth", R"({"model_type":"gpt2","n_embd":18446744073709551615})", kInvalid,
         "n_embd = 18446744073709551615"},
        {"FractionalWidth", R"({"model_type":"opt","hidden_size":64.5})", kInvalid,
         "hidden_size = 64.5"},
        {"TextWidth", R"({"model_type":"opt","hidden_size":"64"})", kInvalid, "hidden_size"},
        {"HeadsDoNotDivide", R"({"model_type":"gpt2","n_embd":64,"n_head":5})", kInvalid,
         "n_embd 64 is not divisible by n_head 5"},
        {"DropoutOfOne", R"({"model_type":"gpt2","attn_pdrop":1.0})", kInvalid, "attn_pdrop"},
        {"EpsilonOfZero", R"({"model_type":"gpt2","layer_norm_epsilon":0})", kInvalid,
         "layer_norm_epsilon"},
        {"FlagIsText", R"({"model_type":"opt","do_layer_norm_before":"no"})", kInvalid,
         "do_layer_norm_before"},
        {"CrossAttention", R"({"model_type":"gpt2","add_cross_attention":true})", kUnimplemented,
         "add_cross_attention"},
        {"LayerDrop", R"({"model_type":"opt","layerdrop":0.1})", kUnimplemented, "layerdrop"},
        {"Quantized", R"({"model_type":"opt","quantization_config":{"bits":4}})", kUnimplemented,
         "quantization_config"},
        {"PadPastVocab", R"({"model_type":"opt","vocab_size":10,"pad_token_id":10})", kInvalid,
         "pad_token_id 10 is past vocab_size 10"},
    }),
    [](const auto& config) { return config.param.name; });

TEST_P(BadHfConfigTest, IsRefusedWithItsReason) {
  EXPECT_THAT(
      ParseHfConfig(GetParam().json, "config.json"),
      StatusIs(GetParam().code, AllOf(HasSubstr("config.json"), HasSubstr(GetParam().message))));
}

TEST(HfConfigTest, DeepNestingIsRefused) {
  const std::string deep =
      R"({"model_type":"gpt2","x":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(ParseHfConfig(deep, "c"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HfConfigTest, AMissingDirectoryIsNamed) {
  EXPECT_THAT(ReadHfConfig("/no/such/model"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/model")));
}

}  // namespace
}  // namespace gemini::trainer
