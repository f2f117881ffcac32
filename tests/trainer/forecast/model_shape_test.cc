// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/model_shape.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/causal_lm.h"

namespace gemini::trainer {
namespace {

struct ModelCase {
  const char* name;
  const char* json;
};
class ModelShapeTest : public ::testing::TestWithParam<ModelCase> {};

INSTANTIATE_TEST_SUITE_P(
    Models, ModelShapeTest,
    ::testing::ValuesIn(std::vector<ModelCase>{
        {"Gpt2", R"({"model_type":"gpt2"})"},
        {"Gpt2Xl", R"({"model_type":"gpt2","n_embd":1600,"n_layer":48,"n_head":25})"},
        {"Gpt2Untied",
         R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,"n_inner":100,
             "tie_word_embeddings":false})"},
        {"Opt125m", R"({"model_type":"opt"})"},
        {"Opt350m",
         R"({"model_type":"opt","hidden_size":1024,"num_hidden_layers":24,
             "num_attention_heads":16,"ffn_dim":4096,"word_embed_proj_dim":512,
             "do_layer_norm_before":false})"},
        {"OptBare",
         R"({"model_type":"opt","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
             "ffn_dim":96,"enable_bias":false,"layer_norm_elementwise_affine":false,
             "tie_word_embeddings":false})"},
        {"OptWithoutFinalNorm",
         R"({"model_type":"opt","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
             "_remove_final_layer_norm":true})"},
    }),
    [](const auto& model) { return model.param.name; });

// The oracle is the model itself, made without memory.
TEST_P(ModelShapeTest, HasTheTensorsOfTheModelInTheirOrder) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(GetParam().json, "config.json"));
  ASSERT_OK_AND_ASSIGN(
      const auto model,
      MakeCausalLm(config.spec, torch::dtype(torch::kFloat32).device(torch::kMeta)));
  std::vector<std::pair<std::string, int64_t>> expected;
  for (const ParameterShape& parameter : ParameterShapesOf(*model)) {
    expected.emplace_back(parameter.name, parameter.num_elements());
  }
  ASSERT_OK_AND_ASSIGN(const policies::TransformerShape shape, ShapeOf(config.spec));
  std::vector<std::pair<std::string, int64_t>> found;
  for (const policies::ShapedTensor& tensor : policies::TensorsOf(shape).tensors) {
    found.emplace_back(tensor.name, tensor.num_elements);
  }
  EXPECT_EQ(found, expected);
}

TEST(ModelShapeOfConfigTest, TakesWhatActivationsDependOnFromTheConfig) {
  ASSERT_OK_AND_ASSIGN(
      const HfConfig gpt2,
      ParseHfConfig(R"({"model_type":"gpt2","activation_function":"relu","n_head":6,
                        "resid_pdrop":0.0,"embd_pdrop":0.0})",
                    "c"));
  EXPECT_FALSE(ShapeOf(gpt2.spec)->activation_keeps_input);
  EXPECT_FALSE(ShapeOf(gpt2.spec)->dropout);
  EXPECT_EQ(ShapeOf(gpt2.spec)->num_heads, 6);
  ASSERT_OK_AND_ASSIGN(
      const HfConfig opt,
      ParseHfConfig(R"({"model_type":"opt","activation_function":"gelu","dropout":0.1})", "c"));
  EXPECT_TRUE(ShapeOf(opt.spec)->activation_keeps_input);
  EXPECT_TRUE(ShapeOf(opt.spec)->dropout);
  // Two rows of padding lie before the first position.
  EXPECT_EQ(ShapeOf(opt.spec)->num_positions, opt.spec.max_sequence + 2);
}

TEST(ModelShapeOfConfigTest, OtherFamiliesAreNotForetoldYet) {
  ASSERT_OK_AND_ASSIGN(const HfConfig llama, ParseHfConfig(R"({"model_type":"llama"})", "c"));
  EXPECT_THAT(ShapeOf(llama.spec), StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace gemini::trainer
