// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/hf_config.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HfConfigTest, AbsentKeysHaveTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const HfConfig gpt2, ParseHfConfig(R"({"model_type":"gpt2"})", "c"));
  EXPECT_EQ(gpt2.model_type, "gpt2");
  EXPECT_EQ(gpt2.spec.vocab_size, 50257);
  EXPECT_EQ(gpt2.spec.max_sequence, 1024);
  EXPECT_TRUE(gpt2.spec.tied_head);
  EXPECT_EQ(gpt2.spec.feed_forward.width, 3072);
  EXPECT_EQ(gpt2.spec.feed_forward.activation, Activation::kGeluTanh);
  EXPECT_EQ(gpt2.spec.attention.scale, 0.125);
  EXPECT_EQ(gpt2.spec.padding_token, -1);
  EXPECT_EQ(gpt2.spec.num_blocks, 12);
  EXPECT_EQ(gpt2.spec.norm.epsilon, 1e-5);
  EXPECT_EQ(gpt2.spec.residual_dropout, 0.1);
  EXPECT_EQ(gpt2.spec.embedding_dropout, 0.1);
  EXPECT_EQ(gpt2.spec.attention.num_heads, 12);
  EXPECT_EQ(gpt2.spec.attention.dropout, 0.1);
  EXPECT_FALSE(gpt2.spec.attention.divides_scale_by_depth);

  ASSERT_OK_AND_ASSIGN(const HfConfig opt, ParseHfConfig(R"({"model_type":"opt"})", "c"));
  EXPECT_EQ(opt.model_type, "opt");
  EXPECT_EQ(opt.spec.vocab_size, 50272);
  EXPECT_EQ(opt.spec.max_sequence, 2048);
  EXPECT_EQ(opt.spec.padding_token, 1);
  EXPECT_EQ(opt.spec.embedding_width, 768);
  EXPECT_FALSE(opt.spec.has_projections());
  EXPECT_TRUE(opt.spec.final_norm);
  EXPECT_EQ(opt.spec.feed_forward.width, 3072);
  EXPECT_EQ(opt.spec.feed_forward.activation, Activation::kRelu);
  EXPECT_TRUE(opt.spec.feed_forward.bias);
  EXPECT_EQ(opt.spec.num_blocks, 12);
  EXPECT_EQ(opt.spec.positions->first_row, 2);
  EXPECT_EQ(opt.spec.norm.epsilon, 1e-5);
  EXPECT_TRUE(opt.spec.norm.affine);
  EXPECT_EQ(opt.spec.order, BlockOrder::kNormsBefore);
  EXPECT_EQ(opt.spec.residual_dropout, 0.1);
  EXPECT_EQ(opt.spec.embedding_dropout, 0.0);
  EXPECT_EQ(opt.spec.attention.num_heads, 12);
  EXPECT_EQ(opt.spec.attention.dropout, 0.0);
  EXPECT_TRUE(opt.spec.attention.bias);
  EXPECT_TRUE(opt.spec.tied_head);
}

TEST(HfConfigTest, KeysAreHonoured) {
  ASSERT_OK_AND_ASSIGN(const HfConfig gpt2, ParseHfConfig(R"({
      "model_type":"gpt2", "vocab_size":301, "n_positions":32, "n_embd":64, "n_layer":2,
      "n_head":4, "n_inner":null, "activation_function":"gelu", "resid_pdrop":0.2,
      "embd_pdrop":0.3, "attn_pdrop":0, "layer_norm_epsilon":1e-6, "scale_attn_weights":false,
      "scale_attn_by_inverse_layer_idx":true, "tie_word_embeddings":false,
      "add_cross_attention":false})",
                                                          "c"));
  const ModelSpec& small = gpt2.spec;
  EXPECT_EQ(small.feed_forward.width, 256);
  EXPECT_EQ(small.num_blocks, 2);
  EXPECT_EQ(small.attention.num_heads, 4);
  EXPECT_EQ(small.feed_forward.activation, Activation::kGelu);
  EXPECT_EQ(small.residual_dropout, 0.2);
  EXPECT_EQ(small.embedding_dropout, 0.3);
  EXPECT_EQ(small.attention.dropout, 0.0);
  EXPECT_EQ(small.norm.epsilon, 1e-6);
  EXPECT_EQ(small.attention.scale, 1.0);
  EXPECT_TRUE(small.attention.divides_scale_by_depth);
  EXPECT_FALSE(small.tied_head);

  ASSERT_OK_AND_ASSIGN(const HfConfig opt, ParseHfConfig(R"({
      "model_type":"opt", "vocab_size":301, "hidden_size":64, "num_attention_heads":4,
      "num_hidden_layers":3, "ffn_dim":128, "max_position_embeddings":40,
      "word_embed_proj_dim":32, "do_layer_norm_before":false, "pad_token_id":null,
      "enable_bias":false, "layer_norm_elementwise_affine":false, "dropout":0.5,
      "attention_dropout":0.25, "_remove_final_layer_norm":true, "layerdrop":0.0})",
                                                         "c"));
  const ModelSpec& post = opt.spec;
  EXPECT_TRUE(post.has_projections());
  EXPECT_EQ(post.order, BlockOrder::kNormsAfter);
  EXPECT_FALSE(post.final_norm);
  EXPECT_EQ(post.padding_token, -1);
  EXPECT_EQ(post.num_blocks, 3);
  EXPECT_EQ(post.feed_forward.width, 128);
  EXPECT_FALSE(post.attention.bias);
  EXPECT_FALSE(post.feed_forward.bias);
  EXPECT_FALSE(post.norm.affine);
  EXPECT_EQ(post.residual_dropout, 0.5);
  EXPECT_EQ(post.attention.dropout, 0.25);
  EXPECT_EQ(post.attention.scale, 0.25);
  EXPECT_EQ(post.max_sequence, 40);
}

TEST(HfConfigTest, LlamaHasTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const HfConfig llama, ParseHfConfig(R"({"model_type":"llama"})", "c"));
  const ModelSpec& spec = llama.spec;
  EXPECT_EQ(spec.vocab_size, 32000);
  EXPECT_EQ(spec.max_sequence, 2048);
  EXPECT_EQ(spec.width, 4096);
  EXPECT_EQ(spec.num_blocks, 32);
  EXPECT_EQ(spec.padding_token, -1);
  EXPECT_EQ(spec.norm.kind, NormKind::kRms);
  EXPECT_EQ(spec.norm.epsilon, 1e-6);
  EXPECT_FALSE(spec.positions.has_value());
  EXPECT_EQ(spec.kinds.size(), 1u);
  EXPECT_EQ(spec.kinds[0].rotary->theta, 10000);
  EXPECT_EQ(spec.kinds[0].rotary->scaling, RotarySpec::Scaling::kNone);
  EXPECT_EQ(spec.attention.num_kv_heads, 32);
  EXPECT_EQ(spec.attention.head_size, 128);
  EXPECT_FALSE(spec.attention.bias);
  EXPECT_FALSE(spec.attention.out_bias);
  EXPECT_EQ(spec.attention.dropout, 0.0);
  EXPECT_EQ(spec.feed_forward.width, 11008);
  EXPECT_EQ(spec.feed_forward.activation, Activation::kSilu);
  EXPECT_TRUE(spec.feed_forward.gated);
  EXPECT_FALSE(spec.feed_forward.bias);
  EXPECT_FALSE(spec.tied_head);
}

TEST(HfConfigTest, NullsOfLlamaFilesAreDefaultsAndANegativePadCountsFromTheEnd) {
  ASSERT_OK_AND_ASSIGN(const HfConfig llama, ParseHfConfig(R"({
      "model_type":"llama", "head_dim":null, "num_key_value_heads":null, "rope_scaling":null,
      "vocab_size":100, "pad_token_id":-1, "pretraining_tp":1})",
                                                           "c"));
  EXPECT_EQ(llama.spec.attention.head_size, 128);
  EXPECT_EQ(llama.spec.attention.num_kv_heads, 32);
  EXPECT_EQ(llama.spec.kinds[0].rotary->scaling, RotarySpec::Scaling::kNone);
  EXPECT_EQ(llama.spec.padding_token, 99);
}

// What the class of transformers 5.23 has for a file of a model_type alone.
struct Defaults {
  const char* model_type;
  int64_t vocab_size, max_sequence, width, num_blocks, num_heads, num_kv_heads, head_size,
      feed_width, padding_token;
  bool tied_head, bias, out_bias;
  double epsilon, theta, soft_cap, logit_scale, logit_soft_cap;
};
TEST(HfConfigTest, EachDecoderHasTheDefaultsOfItsClass) {
  for (const Defaults& expected : std::vector<Defaults>{
           {"mistral", 32000, 131072, 4096, 32, 32, 8, 128, 14336, -1, false, false, false, 1e-6,
            1e4, 0, 1, 0},
           {"mixtral", 32000, 131072, 4096, 32, 32, 8, 128, 14336, -1, false, false, false, 1e-5,
            1e6, 0, 1, 0},
           {"qwen2", 151936, 32768, 4096, 32, 32, 32, 128, 22016, -1, false, true, false, 1e-6, 1e4,
            0, 1, 0},
           {"qwen2_moe", 151936, 32768, 2048, 24, 16, 16, 128, 5632, -1, false, true, false, 1e-6,
            1e4, 0, 1, 0},
           {"qwen3", 151936, 32768, 4096, 32, 32, 32, 128, 22016, -1, false, false, false, 1e-6,
            1e4, 0, 1, 0},
           {"qwen3_moe", 151936, 32768, 2048, 24, 32, 4, 64, 6144, -1, false, false, false, 1e-6,
            1e4, 0, 1, 0},
           {"gemma", 256000, 8192, 3072, 28, 16, 16, 256, 24576, 0, true, false, false, 1e-6, 1e4,
            0, 1, 0},
           {"gemma2", 256000, 8192, 2304, 26, 8, 4, 256, 9216, 0, true, false, false, 1e-6, 1e4, 50,
            1, 30},
           {"gemma3_text", 262208, 131072, 2304, 26, 8, 4, 256, 9216, 0, true, false, false, 1e-6,
            1e6, 0, 1, 0},
           {"cohere", 256000, 8192, 8192, 40, 64, 64, 128, 22528, 0, true, false, false, 1e-5, 5e5,
            0, 0.0625, 0},
           {"gpt_neox", 50432, 2048, 6144, 44, 64, 64, 96, 24576, -1, false, true, true, 1e-5, 1e4,
            0, 1, 0},
           {"phi3", 32064, 4096, 3072, 32, 32, 32, 96, 8192, 32000, false, false, false, 1e-5, 1e4,
            0, 1, 0},
       }) {
    SCOPED_TRACE(expected.model_type);
    ASSERT_OK_AND_ASSIGN(
        const HfConfig config,
        ParseHfConfig(absl::StrCat(R"({"model_type":")", expected.model_type, R"("})"), "c"));
    const ModelSpec& spec = config.spec;
    EXPECT_EQ(spec.vocab_size, expected.vocab_size);
    EXPECT_EQ(spec.max_sequence, expected.max_sequence);
    EXPECT_EQ(spec.width, expected.width);
    EXPECT_EQ(spec.num_blocks, expected.num_blocks);
    EXPECT_EQ(spec.attention.num_heads, expected.num_heads);
    EXPECT_EQ(spec.attention.num_kv_heads, expected.num_kv_heads);
    EXPECT_EQ(spec.attention.head_size, expected.head_size);
    EXPECT_DOUBLE_EQ(spec.attention.scale, 1 / std::sqrt(static_cast<double>(expected.head_size)));
    EXPECT_EQ(spec.attention.bias, expected.bias);
    EXPECT_EQ(spec.attention.out_bias, expected.out_bias);
    EXPECT_EQ(spec.attention.soft_cap, expected.soft_cap);
    EXPECT_EQ(spec.feed_forward.width, expected.feed_width);
    EXPECT_EQ(spec.padding_token, expected.padding_token);
    EXPECT_EQ(spec.tied_head, expected.tied_head);
    EXPECT_EQ(spec.norm.epsilon, expected.epsilon);
    EXPECT_EQ(spec.kinds[0].rotary->theta, expected.theta);
    EXPECT_EQ(spec.logit_scale, expected.logit_scale);
    EXPECT_EQ(spec.logit_soft_cap, expected.logit_soft_cap);
  }
}

// The windows of the first six blocks.
TEST(HfConfigTest, BlocksSeeTheWindowsOfTheirFamily) {
  struct Windows {
    const char* json;
    std::vector<int64_t> windows;
  };
  for (const Windows& expected : std::vector<Windows>{
           {R"("mistral")", {4096, 4096, 4096, 4096, 4096, 4096}},
           {R"("mistral","sliding_window":null)", {0, 0, 0, 0, 0, 0}},
           {R"("mistral","sliding_window":8,"layer_types":["full_attention","sliding_attention",
               "full_attention","full_attention","full_attention","sliding_attention"])",
            {0, 8, 0, 0, 0, 8}},
           {R"("qwen2","sliding_window":7,"max_window_layers":4)", {0, 0, 0, 0, 0, 0}},
           {R"("qwen2","max_window_layers":5,"use_sliding_window":true)", {0, 0, 0, 0, 0, 4096}},
           {R"("qwen2","use_sliding_window":true)", {0, 0, 0, 0, 0, 0}},  // From block 28 on.
           {R"("qwen2","sliding_window":7,"max_window_layers":4,"use_sliding_window":true)",
            {0, 0, 0, 0, 7, 7}},
           {R"("qwen3","sliding_window":null,"use_sliding_window":true)", {0, 0, 0, 0, 0, 0}},
           {R"("gemma2")", {4096, 0, 4096, 0, 4096, 0}},
           {R"("gemma3_text","sliding_window":9)", {9, 9, 9, 9, 9, 0}},
           {R"("gemma3_text","sliding_window":9,"sliding_window_pattern":3)", {9, 9, 0, 9, 9, 0}},
           {R"("gemma2","sliding_window":9,"layer_types":["full_attention","full_attention",
               "sliding_attention","full_attention","full_attention","sliding_attention"])",
            {0, 0, 9, 0, 0, 9}},
           {R"("llama")", {0, 0, 0, 0, 0, 0}},
           {R"("mixtral")", {0, 0, 0, 0, 0, 0}},
           {R"("mixtral","sliding_window":9)", {9, 9, 9, 9, 9, 9}},
           {R"("qwen2_moe","sliding_window":9,"max_window_layers":3,"use_sliding_window":true)",
            {9, 0, 9, 0, 0, 0}},
           {R"("qwen3_moe","sliding_window":9)", {0, 0, 0, 0, 0, 0}},
           {R"("qwen3_moe","sliding_window":9,"use_sliding_window":true)", {9, 9, 9, 9, 9, 9}},
       }) {
    SCOPED_TRACE(expected.json);
    ASSERT_OK_AND_ASSIGN(
        const HfConfig config,
        ParseHfConfig(absl::StrCat(R"({"num_hidden_layers":6,"model_type":)", expected.json, "}"),
                      "c"));
    std::vector<int64_t> windows;
    for (int64_t i = 0; i < 6; ++i) {
      windows.push_back(config.spec.kinds[config.spec.KindOf(i)].window);
    }
    EXPECT_EQ(windows, expected.windows);
  }
}

TEST(HfConfigTest, ExpertsAreThoseOfTheirFamily) {
  ASSERT_OK_AND_ASSIGN(const HfConfig mixtral, ParseHfConfig(R"({"model_type":"mixtral"})", "c"));
  EXPECT_EQ(mixtral.spec.experts->count, 8);
  EXPECT_EQ(mixtral.spec.experts->chosen, 2);
  EXPECT_EQ(mixtral.spec.experts->width, 14336);
  EXPECT_TRUE(mixtral.spec.experts->normalises);
  EXPECT_FALSE(mixtral.spec.experts->rounds_weights);
  EXPECT_EQ(mixtral.spec.experts->shared_width, 0);
  EXPECT_EQ(mixtral.spec.norm.epsilon, 1e-5);
  EXPECT_TRUE(mixtral.spec.HasExperts(0));
  EXPECT_FALSE(mixtral.spec.experts->router_loss_coefficient.has_value());

  ASSERT_OK_AND_ASSIGN(const HfConfig qwen2, ParseHfConfig(R"({"model_type":"qwen2_moe"})", "c"));
  EXPECT_EQ(qwen2.spec.experts->count, 60);
  EXPECT_EQ(qwen2.spec.experts->chosen, 4);
  EXPECT_EQ(qwen2.spec.experts->width, 1408);
  EXPECT_FALSE(qwen2.spec.experts->normalises);
  EXPECT_TRUE(qwen2.spec.experts->rounds_weights);
  EXPECT_EQ(qwen2.spec.experts->shared_width, 5632);
  EXPECT_TRUE(qwen2.spec.attention.bias);
  EXPECT_FALSE(qwen2.spec.attention.out_bias);

  ASSERT_OK_AND_ASSIGN(const HfConfig qwen3, ParseHfConfig(R"({"model_type":"qwen3_moe",
      "num_hidden_layers":6, "decoder_sparse_step":2, "mlp_only_layers":[3], "num_experts":64,
      "moe_intermediate_size":10, "norm_topk_prob":true, "num_experts_per_tok":3,
      "output_router_logits":true})",
                                                           "c"));
  EXPECT_EQ(qwen3.spec.experts->router_loss_coefficient, 0.001);
  EXPECT_EQ(qwen3.spec.experts->count, 64);
  EXPECT_EQ(qwen3.spec.experts->chosen, 3);
  EXPECT_EQ(qwen3.spec.experts->width, 10);
  EXPECT_TRUE(qwen3.spec.experts->normalises);
  EXPECT_EQ(qwen3.spec.experts->shared_width, 0);
  EXPECT_EQ(qwen3.spec.has_experts, (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_TRUE(qwen3.unknown_keys.empty());
}

TEST(HfConfigTest, ALossOfLabelsIncludesNoRouters) {
  const std::string json = R"({"model_type":"mixtral","output_router_logits":true})";
  ASSERT_OK_AND_ASSIGN(const HfConfig causal, ParseHfConfig(json, "c"));
  EXPECT_TRUE(causal.spec.experts->router_loss_coefficient.has_value());
  ASSERT_OK_AND_ASSIGN(const HfConfig labels,
                       ParseHfConfig(json, "c", {.name = "sequence-classification"}));
  EXPECT_FALSE(labels.spec.experts->router_loss_coefficient.has_value());
}

TEST(HfConfigTest, WhatGemmaSaysAndMeans) {
  ASSERT_OK_AND_ASSIGN(const HfConfig first,
                       ParseHfConfig(R"({"model_type":"gemma","hidden_act":"gelu"})", "c"));
  EXPECT_EQ(first.spec.feed_forward.activation, Activation::kGeluTanh);
  EXPECT_EQ(first.spec.embedding_scale, std::sqrt(3072.0));
  EXPECT_TRUE(first.spec.norm.adds_one);
  ASSERT_OK_AND_ASSIGN(const HfConfig second, ParseHfConfig(R"({"model_type":"gemma2",
      "hidden_act":"relu","query_pre_attn_scalar":64,"final_logit_softcapping":null})",
                                                            "c"));
  EXPECT_EQ(second.spec.feed_forward.activation, Activation::kGeluTanh);
  EXPECT_EQ(second.spec.attention.scale, 0.125);
  EXPECT_EQ(second.spec.attention.soft_cap, 50);
  EXPECT_EQ(second.spec.logit_soft_cap, 0);
}

TEST(HfConfigTest, Gemma3HasAnglesOfItsOwnForWindows) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config,
                       ParseHfConfig(R"({"model_type":"gemma3_text"})", "c"));
  EXPECT_EQ(config.spec.kinds[1].rotary->theta, 10000);
  EXPECT_EQ(config.spec.kinds[1].window, 4096);
  // rope_scaling adds to what rope_parameters has.
  ASSERT_OK_AND_ASSIGN(const HfConfig both, ParseHfConfig(R"({"model_type":"gemma3_text",
      "rope_parameters":{"full_attention":{"rope_type":"linear","factor":8.0}},
      "rope_scaling":{"factor":4.0}})",
                                                          "c"));
  EXPECT_EQ(both.spec.kinds[0].rotary->scaling, RotarySpec::Scaling::kLinear);
  EXPECT_EQ(both.spec.kinds[0].rotary->factor, 4);
}

// What files of the Hub have beside the keys that every test has.
TEST(HfConfigTest, KeysOfKnownFilesAreKnown) {
  for (const char* json : {
           R"({"model_type":"gpt2","n_ctx":1024,"n_special":0,"predict_special_tokens":true,
               "output_past":true,"summary_type":"cls_index","task_specific_params":{}})",
           R"({"model_type":"opt","activation_dropout":0.0,"init_std":0.02,"prefix":"</s>",
               "output_projection":true,"_remove_final_layer_norm":false})",
           R"({"model_type":"llama","pretraining_tp":1,"is_llama_config":true,
               "rope_interleaved":false,"transformers.js_config":{},"mlp_bias":false})",
           R"({"model_type":"mistral","attention_bias":false,"unsloth_version":"1"})",
           R"({"model_type":"qwen2","use_mrope":false,"max_window_layers":28})",
           R"({"model_type":"gemma","hidden_activation":null})",
           R"({"model_type":"gemma2","sliding_window_size":4096,"hidden_act":"gelu_pytorch_tanh",
               "cache_implementation":"hybrid"})",
           R"({"model_type":"gemma3_text","sliding_window_pattern":6,"_sliding_window_pattern":6,
               "attn_logit_softcapping":null,"rope_scaling":null,"rope_local_base_freq":10000})",
           R"({"model_type":"cohere","model_max_length":131072,"use_qk_norm":false,
               "pretraining_tp":1})",
           R"({"model_type":"gpt_neox","rotary_pct":0.25,"rotary_emb_base":10000,
               "attention_probs_dropout_prob":0,"hidden_dropout_prob":0,"hidden_act":"gelu_fast",
               "classifier_dropout":0.1,"use_parallel_residual":true})",
           R"({"model_type":"phi3","embd_pdrop":0.0,"resid_pdrop":0.0,"attention_bias":false,
               "rope_scaling":null,"original_max_position_embeddings":4096})",
           R"({"model_type":"mixtral","router_aux_loss_coef":0.02,"output_router_logits":false})",
           R"({"model_type":"qwen3_moe","max_window_layers":48,"decoder_sparse_step":1,
               "mlp_only_layers":[],"use_qk_norm":true,"qkv_bias":false,
               "shared_expert_intermediate_size":0})",
       }) {
    SCOPED_TRACE(json);
    ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(json, "c"));
    EXPECT_THAT(config.unknown_keys, ::testing::IsEmpty());
  }
}

TEST(HfConfigTest, KeysThatNobodyKnowsAreListed) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(R"({
      "model_type":"llama", "torch_dtype":"bfloat16", "num_experts":8, "pretraining_tp":1,
      "rope_scaling":{"type":"linear","factor":2.0,"alpha":3}, "architectures":["A"]})",
                                                            "c"));
  EXPECT_THAT(config.unknown_keys, ::testing::ElementsAre("num_experts", "rope_scaling.alpha"));
}

TEST(HfConfigTest, TheGeneralNamesOfSizesAreUnderstood) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(R"({
      "model_type":"gpt2", "hidden_size":64, "num_hidden_layers":2, "num_attention_heads":4,
      "max_position_embeddings":48})",
                                                            "c"));
  EXPECT_EQ(config.spec.width, 64);
  EXPECT_EQ(config.spec.num_blocks, 2);
  EXPECT_EQ(config.spec.attention.num_heads, 4);
  EXPECT_EQ(config.spec.max_sequence, 48);
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
        {"OtherType", R"({"model_type":"mamba"})", kUnimplemented,
         "'mamba'; supported are bert, cohere, gemma, gemma2, gemma3_text, gpt2, gpt_neox, llama, "
         "mistral, mixtral, opt, pair_trunk, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, vit"},
        {"NoWindow", R"({"model_type":"gemma3_text","sliding_window":null})", kInvalid,
         "sliding_window = null, expected a value"},
        {"NegativeDeviation", R"({"model_type":"llama","initializer_range":-0.1})", kInvalid,
         "initializer_range = -0.1, expected a number of 0 or more"},
        {"HeadsNotNormed", R"({"model_type":"qwen3_moe","use_qk_norm":false})", kUnimplemented,
         "use_qk_norm"},
        {"LossOfTheRouterBelowZero", R"({"model_type":"mixtral","router_aux_loss_coef":-0.1})",
         kInvalid, "router_aux_loss_coef = -0.1, expected a number of 0 or more"},
        {"NoiseOfTheRouter", R"({"model_type":"mixtral","router_jitter_noise":0.1})",
         kUnimplemented, "router_jitter_noise"},
        {"MoreChosenThanThere",
         R"({"model_type":"mixtral","num_local_experts":4,"num_experts_per_tok":5})", kInvalid,
         "num_experts_per_tok 5 is above the number of experts 4"},
        {"BlocksAreNoList", R"({"model_type":"qwen3_moe","mlp_only_layers":3})", kInvalid,
         "mlp_only_layers = 3, expected a list of whole numbers"},
        {"BlockBeforeTheFirst", R"({"model_type":"qwen3_moe","mlp_only_layers":[-1]})", kInvalid,
         "mlp_only_layers = [-1]"},
        {"VisionPart",
         R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text"},"vision_config":{}})",
         kUnimplemented, "save the text model alone"},
        {"MoreBlocksThanListsMayHave", R"({"model_type":"mistral","num_hidden_layers":66666662})",
         kInvalid, "num_hidden_layers = 66666662, expected a whole number from 1 to 65536"},
        {"KindsOfOtherLength",
         R"({"model_type":"gemma2","num_hidden_layers":2,"layer_types":["full_attention"]})",
         kInvalid, "layer_types = [\"full_attention\"], expected a list of 2 names"},
        {"OtherKind",
         R"({"model_type":"gemma2","num_hidden_layers":1,"layer_types":["chunked_attention"]})",
         kUnimplemented,
         "layer_types = \"chunked_attention\"; supported are full_attention, sliding_attention"},
        {"KindIsANumber", R"({"model_type":"gemma2","num_hidden_layers":1,"layer_types":[1]})",
         kInvalid, "layer_types = 1, expected a name"},
        {"WindowsThatAreOff",
         R"({"model_type":"qwen2","num_hidden_layers":1,"layer_types":["sliding_attention"]})",
         kUnimplemented, "layer_types = \"sliding_attention\"; supported are full_attention"},
        {"SeesWhatIsBehind", R"({"model_type":"gemma","use_bidirectional_attention":true})",
         kUnimplemented, "use_bidirectional_attention"},
        {"CapThatTransformersIgnores",
         R"({"model_type":"gemma3_text","attn_logit_softcapping":50.0})", kUnimplemented,
         "attn_logit_softcapping"},
        {"OtherActivation", R"({"model_type":"opt","activation_function":"mish"})", kUnimplemented,
         "activation_function = \"mish\"; supported are relu, gelu, gelu_new"},
        {"OtherRotation", R"({"model_type":"llama","rope_scaling":{"type":"dynamic"}})",
         kUnimplemented,
         "rope_scaling: unsupported type = \"dynamic\"; supported are default, linear"},
        {"RotationInPart",
         R"({"model_type":"llama","rope_parameters":{"partial_rotary_factor":0.5}})",
         kUnimplemented, "partial_rotary_factor = 0.5; only 1"},
        {"RotationWithoutFactor",
         R"({"model_type":"llama","rope_parameters":{"rope_type":"linear"}})", kInvalid,
         "rope_parameters: has no factor"},
        {"PartOfAHeadAboveOne", R"({"model_type":"gpt_neox","rotary_pct":1.5})", kInvalid,
         "rotary_pct = 1.5, expected a number above 0 and at most 1"},
        {"PartOfAHeadIsOdd", R"({"model_type":"gpt_neox","rotary_pct":0.0325})", kInvalid,
         "rotated elements of a head: 3 is not divisible by the pairs that are rotated, of 2"},
        {"OtherHeadSize", R"({"model_type":"gpt_neox","head_dim":64})", kUnimplemented,
         "head_dim = 64; only 96"},
        {"NoLongFactors",
         R"({"model_type":"llama","hidden_size":64,"num_attention_heads":16,"rope_scaling":{
             "type":"longrope","short_factor":[1,2]}})",
         kInvalid, "rope_scaling: has no long_factor"},
        {"FactorsOfOtherHeads",
         R"({"model_type":"llama","hidden_size":64,"num_attention_heads":16,"rope_scaling":{
             "type":"longrope","short_factor":[1,2],"long_factor":[1,2,3]}})",
         kInvalid, "long_factor = [1,2,3], expected a list of 2 numbers above 0"},
        {"FactorIsZero",
         R"({"model_type":"llama","hidden_size":64,"num_attention_heads":16,"rope_scaling":{
             "type":"longrope","short_factor":[1,0],"long_factor":[1,2]}})",
         kInvalid, "short_factor = [1,0], expected a list of 2 numbers above 0"},
        {"FactorIsNoNumberOfFp32",
         R"({"model_type":"llama","hidden_size":64,"num_attention_heads":16,"rope_scaling":{
             "type":"longrope","short_factor":[1,1e-60],"long_factor":[1,2]}})",
         kInvalid, "short_factor = [1,1e-60], expected a list of 2 numbers above 0"},
        {"OneOriginalPosition",
         R"({"model_type":"phi3","hidden_size":64,"num_attention_heads":16,"rope_scaling":{
             "type":"longrope","short_factor":[1,2],"long_factor":[1,2]},
             "original_max_position_embeddings":1})",
         kInvalid, "the minimum 2 is above original_max_position_embeddings 1"},
        {"YarnOfPhi", R"({"model_type":"phi3","rope_scaling":{"type":"yarn","factor":2}})",
         kUnimplemented, "type = \"yarn\"; supported are default, longrope"},
        {"RotationIsText", R"({"model_type":"llama","rope_parameters":"linear"})", kInvalid,
         "rope_parameters = \"linear\", expected an object"},
        {"OddHead", R"({"model_type":"llama","head_dim":25})", kInvalid,
         "head_dim 25 is not divisible by the pairs that are rotated, of 2"},
        {"NotCausal", R"({"model_type":"llama","is_causal":false})", kUnimplemented,
         "is_causal = false; only true"},
        {"BlocksDiffer", R"({"model_type":"llama","per_layer_config":[{}]})", kUnimplemented,
         "per_layer_config"},
        {"PadBeforeTheFirst", R"({"model_type":"llama","vocab_size":10,"pad_token_id":-11})",
         kInvalid, "pad_token_id = -11"},
        {"HeadsDoNotShare",
         R"({"model_type":"llama","num_attention_heads":32,"num_key_value_heads":5})", kInvalid,
         "num_attention_heads 32 is not divisible by num_key_value_heads 5"},
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
        {"DropoutOfActivations", R"({"model_type":"opt","activation_dropout":0.1})", kUnimplemented,
         "activation_dropout = 0.1"},
        {"LossOfTensorFlow", R"({"model_type":"gpt2","tf_legacy_loss":true})", kUnimplemented,
         "tf_legacy_loss = true"},
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
