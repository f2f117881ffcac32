// SPDX-License-Identifier: Apache-2.0
// What the family ViT makes of its config.json.
#include <string>
#include <vector>

#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

TEST(VitTest, AbsentKeysHaveTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const HfConfig vit, ParseHfConfig(R"({"model_type":"vit"})", "c"));
  const ModelSpec& spec = vit.spec;
  ASSERT_TRUE(spec.image.has_value());
  EXPECT_EQ(spec.image->channels, 3);
  EXPECT_EQ(spec.image->height, 224);
  EXPECT_EQ(spec.image->width, 224);
  EXPECT_EQ(spec.image->patch_height, 16);
  EXPECT_EQ(spec.image->patch_width, 16);
  EXPECT_EQ(spec.max_sequence, 197);
  EXPECT_EQ(spec.default_sequence(), 197);
  EXPECT_EQ(spec.vocab_size, 0);
  EXPECT_FALSE(spec.positions.has_value());
  EXPECT_EQ(spec.width, 768);
  EXPECT_FALSE(spec.has_projections());
  EXPECT_EQ(spec.num_blocks, 12);
  EXPECT_FALSE(spec.embedding_norm);
  EXPECT_EQ(spec.order, BlockOrder::kNormsBefore);
  EXPECT_TRUE(spec.final_norm);
  EXPECT_EQ(spec.norm.kind, NormKind::kLayer);
  EXPECT_EQ(spec.norm.epsilon, 1e-12);
  EXPECT_FALSE(spec.attention.causal);
  EXPECT_EQ(spec.attention.num_heads, 12);
  EXPECT_EQ(spec.attention.num_kv_heads, 12);
  EXPECT_EQ(spec.attention.head_size, 64);
  EXPECT_EQ(spec.attention.scale, 0.125);
  EXPECT_TRUE(spec.attention.bias);
  EXPECT_TRUE(spec.attention.out_bias);
  EXPECT_EQ(spec.attention.dropout, 0.0);
  EXPECT_EQ(spec.residual_dropout, 0.0);
  EXPECT_EQ(spec.embedding_dropout, 0.0);
  EXPECT_EQ(spec.feed_forward.width, 3072);
  EXPECT_EQ(spec.feed_forward.activation, Activation::kGelu);
  EXPECT_FALSE(spec.tied_head);
  EXPECT_EQ(spec.initial_deviation, 0.02);
  ASSERT_TRUE(spec.classifier.has_value());
  EXPECT_EQ(spec.classifier->input, ClassifierInput::kFirstToken);
  EXPECT_TRUE(spec.classifier->bias);
  EXPECT_EQ(spec.classifier->dropout, 0.0);
  EXPECT_EQ(spec.task.kind, TaskKind::kImageClassification);
  EXPECT_EQ(spec.task.num_labels, 2);
  EXPECT_EQ(vit.model_class, "ViTForImageClassification");
}

TEST(VitTest, KeysAreHonoured) {
  ASSERT_OK_AND_ASSIGN(const HfConfig vit, ParseHfConfig(R"({
      "model_type":"vit", "hidden_size":64, "num_hidden_layers":3, "num_attention_heads":4,
      "intermediate_size":96, "hidden_act":"gelu_new", "hidden_dropout_prob":0.2,
      "attention_probs_dropout_prob":0.3, "initializer_range":0.5, "layer_norm_eps":1e-6,
      "image_size":[12, 20], "patch_size":[3, 5], "num_channels":1, "qkv_bias":false,
      "id2label":{"0":"a","1":"b","2":"c"}})",
                                                         "c"));
  const ModelSpec& spec = vit.spec;
  EXPECT_EQ(spec.image->channels, 1);
  EXPECT_EQ(spec.image->height, 12);
  EXPECT_EQ(spec.image->width, 20);
  EXPECT_EQ(spec.image->patch_height, 3);
  EXPECT_EQ(spec.image->patch_width, 5);
  EXPECT_EQ(spec.image->num_patches(), 16);
  EXPECT_EQ(spec.image->patch_elements(), 15);
  EXPECT_EQ(spec.max_sequence, 17);
  EXPECT_EQ(spec.width, 64);
  EXPECT_EQ(spec.num_blocks, 3);
  EXPECT_EQ(spec.attention.head_size, 16);
  EXPECT_EQ(spec.attention.scale, 0.25);
  EXPECT_FALSE(spec.attention.bias);
  EXPECT_TRUE(spec.attention.out_bias);
  EXPECT_EQ(spec.attention.dropout, 0.3);
  EXPECT_EQ(spec.residual_dropout, 0.2);
  EXPECT_EQ(spec.embedding_dropout, 0.2);
  EXPECT_EQ(spec.feed_forward.width, 96);
  EXPECT_EQ(spec.feed_forward.activation, Activation::kGeluTanh);
  EXPECT_EQ(spec.norm.epsilon, 1e-6);
  EXPECT_EQ(spec.initial_deviation, 0.5);
  EXPECT_EQ(spec.task.num_labels, 3);
}

TEST(VitTest, AllPatchesOfALargeImageAreTaken) {
  ASSERT_OK_AND_ASSIGN(const HfConfig vit,
                       ParseHfConfig(R"({"model_type":"vit","image_size":512})", "c"));
  EXPECT_EQ(vit.spec.default_sequence(), 1025);
}

TEST(VitTest, TensorsOfOtherTasksAreKnown) {
  ASSERT_OK_AND_ASSIGN(const HfConfig vit, ParseHfConfig(R"({"model_type":"vit"})", "c"));
  const WeightNames& names = vit.spec.files;
  EXPECT_EQ(names.ParameterOf("embeddings.cls_token"), "vit.embeddings.cls_token");
  EXPECT_EQ(names.ParameterOf("classifier.weight"), "classifier.weight");
  EXPECT_EQ(names.ParameterOf("decoder.0.weight"), "decoder.0.weight");
  EXPECT_TRUE(names.IsOfAnotherTask("decoder.0.weight"));
  EXPECT_TRUE(names.IsIgnored("vit.embeddings.mask_token"));
  EXPECT_TRUE(names.IsOfAnotherTask("vit.pooler.dense.weight"));
  EXPECT_TRUE(names.IsOfOwnHead("classifier.weight"));
}

// What files of the Hub have beside these keys.
TEST(VitTest, KeysOfKnownFilesAreKnown) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config,
                       ParseHfConfig(R"({"model_type":"vit","encoder_stride":16,
                           "pooler_act":"tanh","pooler_output_size":768})",
                                     "c"));
  EXPECT_THAT(config.unknown_keys, ::testing::IsEmpty());
}

struct BadConfig {
  const char* name;
  const char* json;
  absl::StatusCode code;
  const char* message;
};
class BadVitTest : public ::testing::TestWithParam<BadConfig> {};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    Configs, BadVitTest,
    ::testing::ValuesIn(std::vector<BadConfig>{
        {"HeightDoesNotDivide", R"({"model_type":"vit","image_size":[30, 32]})", kInvalid,
         "the height of image_size 30 is not divisible by that of patch_size 16"},
        {"WidthDoesNotDivide", R"({"model_type":"vit","image_size":[32, 30]})", kInvalid,
         "the width of image_size 30 is not divisible by that of patch_size 16"},
        {"ThreeSizes", R"({"model_type":"vit","image_size":[32, 32, 32]})", kInvalid,
         "image_size = [32,32,32], expected a whole number from 1 to 268435455, or a list of two"},
        {"SizeOfZero", R"({"model_type":"vit","patch_size":0})", kInvalid, "patch_size = 0"},
        {"SizeThatIsNoNumber", R"({"model_type":"vit","patch_size":"big"})", kInvalid,
         "patch_size = \"big\""},
        {"SizeOfAnObject", R"({"model_type":"vit","image_size":{"height":32,"width":32}})",
         kInvalid, "image_size = {"},
        {"ImagesThatAreTooLarge", R"({"model_type":"vit","image_size":[16, 32768]})", kInvalid,
         "the width of image_size 32768 is above the most that is known 16384"},
        {"TooManyChannels", R"({"model_type":"vit","num_channels":32768})", kInvalid,
         "num_channels 32768 is above"},
        {"HeadsDoNotDivide", R"({"model_type":"vit","hidden_size":64,"num_attention_heads":5})",
         kInvalid, "hidden_size 64 is not divisible by num_attention_heads 5"},
        {"Quantized", R"({"model_type":"vit","quantization_config":{"bits":4}})",
         absl::StatusCode::kUnimplemented, "quantization_config"},
    }),
    [](const auto& config) { return config.param.name; });

TEST_P(BadVitTest, IsRefusedWithItsReason) {
  EXPECT_THAT(ParseHfConfig(GetParam().json, "config.json"),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

}  // namespace
}  // namespace gemini::trainer
