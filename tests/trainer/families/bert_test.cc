// SPDX-License-Identifier: Apache-2.0
// What the family BERT makes of its config.json.
#include <string>
#include <vector>

#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

TEST(BertTest, AbsentKeysHaveTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const HfConfig bert, ParseHfConfig(R"({"model_type":"bert"})", "c"));
  const ModelSpec& spec = bert.spec;
  EXPECT_EQ(spec.vocab_size, 30522);
  EXPECT_EQ(spec.max_sequence, 512);
  EXPECT_EQ(spec.positions->rows, 512);
  EXPECT_EQ(spec.positions->first_row, 0);
  EXPECT_EQ(spec.num_token_types, 2);
  EXPECT_EQ(spec.width, 768);
  EXPECT_FALSE(spec.has_projections());
  EXPECT_EQ(spec.num_blocks, 12);
  EXPECT_EQ(spec.padding_token, 0);
  EXPECT_TRUE(spec.embedding_norm);
  EXPECT_EQ(spec.order, BlockOrder::kNormsAfter);
  EXPECT_FALSE(spec.final_norm);
  EXPECT_EQ(spec.norm.kind, NormKind::kLayer);
  EXPECT_EQ(spec.norm.epsilon, 1e-12);
  EXPECT_FALSE(spec.attention.causal);
  EXPECT_EQ(spec.attention.num_heads, 12);
  EXPECT_EQ(spec.attention.num_kv_heads, 12);
  EXPECT_EQ(spec.attention.head_size, 64);
  EXPECT_EQ(spec.attention.scale, 0.125);
  EXPECT_TRUE(spec.attention.bias);
  EXPECT_TRUE(spec.attention.out_bias);
  EXPECT_EQ(spec.attention.dropout, 0.1);
  EXPECT_EQ(spec.residual_dropout, 0.1);
  EXPECT_EQ(spec.embedding_dropout, 0.1);
  EXPECT_EQ(spec.feed_forward.width, 3072);
  EXPECT_EQ(spec.feed_forward.activation, Activation::kGelu);
  EXPECT_FALSE(spec.feed_forward.gated);
  EXPECT_TRUE(spec.feed_forward.bias);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_TRUE(spec.head_bias);
  EXPECT_EQ(spec.head_transform, Activation::kGelu);
  EXPECT_EQ(spec.initial_deviation, 0.02);
  EXPECT_EQ(spec.classifier->input, ClassifierInput::kPooledFirstToken);
  EXPECT_TRUE(spec.classifier->bias);
  EXPECT_EQ(spec.classifier->dropout, 0.1);
}

TEST(BertTest, NormsOfOldFilesHaveOtherNames) {
  ASSERT_OK_AND_ASSIGN(const HfConfig bert, ParseHfConfig(R"({"model_type":"bert"})", "c"));
  const WeightNames& names = bert.spec.files;
  EXPECT_EQ(names.ParameterOf("bert.encoder.layer.3.output.LayerNorm.gamma"),
            "bert.encoder.layer.3.output.LayerNorm.weight");
  EXPECT_EQ(names.ParameterOf("embeddings.LayerNorm.beta"), "bert.embeddings.LayerNorm.bias");
  EXPECT_EQ(names.ParameterOf("cls.predictions.transform.LayerNorm.beta"),
            "cls.predictions.transform.LayerNorm.bias");
  EXPECT_EQ(names.ParameterOf("bert.encoder.layer.3.gamma.weight"),
            "bert.encoder.layer.3.gamma.weight");
}

TEST(BertTest, KeysAreHonoured) {
  ASSERT_OK_AND_ASSIGN(const HfConfig bert, ParseHfConfig(R"({
      "model_type":"bert", "vocab_size":301, "hidden_size":64, "num_hidden_layers":3,
      "num_attention_heads":4, "intermediate_size":96, "hidden_act":"gelu_new",
      "hidden_dropout_prob":0.2, "attention_probs_dropout_prob":0, "max_position_embeddings":40,
      "type_vocab_size":5, "initializer_range":0.5, "layer_norm_eps":1e-6, "pad_token_id":null,
      "classifier_dropout":0.3})",
                                                          "c"));
  const ModelSpec& spec = bert.spec;
  EXPECT_EQ(spec.vocab_size, 301);
  EXPECT_EQ(spec.width, 64);
  EXPECT_EQ(spec.num_blocks, 3);
  EXPECT_EQ(spec.attention.head_size, 16);
  EXPECT_EQ(spec.attention.scale, 0.25);
  EXPECT_EQ(spec.attention.dropout, 0.0);
  EXPECT_EQ(spec.feed_forward.width, 96);
  EXPECT_EQ(spec.feed_forward.activation, Activation::kGeluTanh);
  EXPECT_EQ(spec.head_transform, Activation::kGeluTanh);
  EXPECT_EQ(spec.residual_dropout, 0.2);
  EXPECT_EQ(spec.embedding_dropout, 0.2);
  EXPECT_EQ(spec.classifier->dropout, 0.3);
  EXPECT_EQ(spec.positions->rows, 40);
  EXPECT_EQ(spec.num_token_types, 5);
  EXPECT_EQ(spec.initial_deviation, 0.5);
  EXPECT_EQ(spec.norm.epsilon, 1e-6);
  EXPECT_EQ(spec.padding_token, -1);
  // The classifier's dropout is that of the other parts, unless it has its own.
  ASSERT_OK_AND_ASSIGN(const HfConfig other, ParseHfConfig(R"({
      "model_type":"bert", "hidden_dropout_prob":0.4, "classifier_dropout":null,
      "pad_token_id":7})",
                                                           "c"));
  EXPECT_EQ(other.spec.classifier->dropout, 0.4);
  EXPECT_EQ(other.spec.padding_token, 7);
}

// What files of the Hub have beside these keys.
TEST(BertTest, KeysOfKnownFilesAreKnown) {
  ASSERT_OK_AND_ASSIGN(
      const HfConfig config,
      ParseHfConfig(
          R"({"model_type":"bert","position_embedding_type":"absolute","classifier_dropout":null,
               "gradient_checkpointing":false,"directionality":"bidi","pooler_fc_size":768,
               "pooler_num_attention_heads":12,"pooler_num_fc_layers":3,"pooler_size_per_head":128,
               "pooler_type":"first_token_transform","type_vocab_size":2,"is_decoder":false})",
          "c"));
  EXPECT_THAT(config.unknown_keys, ::testing::IsEmpty());
}

struct BadConfig {
  const char* name;
  const char* json;
  absl::StatusCode code;
  const char* message;
};
class BadBertTest : public ::testing::TestWithParam<BadConfig> {};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
INSTANTIATE_TEST_SUITE_P(
    Configs, BadBertTest,
    ::testing::ValuesIn(std::vector<BadConfig>{
        {"RelativePositions", R"({"model_type":"bert","position_embedding_type":"relative_key"})",
         kUnimplemented, "position_embedding_type = \"relative_key\"; supported are absolute"},
        {"Decoder", R"({"model_type":"bert","is_decoder":true})", kUnimplemented,
         "is_decoder = true"},
        {"DecoderOfAnEncoder", R"({"model_type":"bert","add_cross_attention":true})",
         kUnimplemented, "add_cross_attention"},
        {"HeadOfItsOwn", R"({"model_type":"bert","tie_word_embeddings":false})", kUnimplemented,
         "tie_word_embeddings = false; only true"},
        {"Quantized", R"({"model_type":"bert","quantization_config":{"bits":4}})", kUnimplemented,
         "quantization_config"},
        {"HeadsDoNotDivide", R"({"model_type":"bert","hidden_size":64,"num_attention_heads":5})",
         kInvalid, "hidden_size 64 is not divisible by num_attention_heads 5"},
        {"PadPastVocab", R"({"model_type":"bert","vocab_size":10,"pad_token_id":10})", kInvalid,
         "pad_token_id 10 is past vocab_size 10"},
        {"NoTokenTypes", R"({"model_type":"bert","type_vocab_size":0})", kInvalid,
         "type_vocab_size = 0"},
    }),
    [](const auto& config) { return config.param.name; });

TEST_P(BadBertTest, IsRefusedWithItsReason) {
  EXPECT_THAT(ParseHfConfig(GetParam().json, "config.json"),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

}  // namespace
}  // namespace gemini::trainer
