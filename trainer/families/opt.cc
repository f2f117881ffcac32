// SPDX-License-Identifier: Apache-2.0
// OPT, as OPTForCausalLM of transformers: layer norms before each part (most sizes) or after it
// (350m, which also projects into and out of its embeddings).
// Source: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv:2205.01068.
#include <cmath>

#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

// Positions start at row 2 of the table: fairseq, where the weights come from, kept 0 and 1 for
// padding.
constexpr int64_t kFirstRow = 2;

}  // namespace

ModelSpec MakeOptSpec(ConfigKeys& keys) {
  ModelSpec spec = {.vocab_size = 50272, .max_sequence = 2048, .width = 768, .num_blocks = 12};
  keys.Size({"vocab_size"}, spec.vocab_size);
  keys.Size({"max_position_embeddings"}, spec.max_sequence);
  keys.Size({"hidden_size"}, spec.width);
  keys.NumBlocks({"num_hidden_layers"}, spec.num_blocks);
  spec.embedding_width = spec.width;
  keys.Size({"word_embed_proj_dim"}, spec.embedding_width);
  spec.positions = {
      .rows = spec.max_sequence + kFirstRow, .first_row = kFirstRow, .for_each_sequence = true};
  // Absent means 1, the default of transformers; null means none.
  spec.padding_token = keys.IsNull("pad_token_id") ? -1 : 1;
  keys.Size({"pad_token_id"}, spec.padding_token, /*minimum=*/0);
  spec.residual_dropout = 0.1;
  keys.Probability("dropout", spec.residual_dropout);
  // The epsilon is Torch's default; no key changes it.
  keys.Flag("layer_norm_elementwise_affine", spec.norm.affine);
  bool norm_before = true;
  keys.Flag("do_layer_norm_before", norm_before);
  spec.order = norm_before ? BlockOrder::kNormsBefore : BlockOrder::kNormsAfter;
  bool removes_final_norm = false;
  keys.Flag("_remove_final_layer_norm", removes_final_norm);
  spec.final_norm = norm_before && !removes_final_norm;
  keys.Flag("tie_word_embeddings", spec.tied_head);
  keys.NotNegative("init_std", spec.initial_deviation);

  AttentionSpec& attention = spec.attention;
  attention = {.num_heads = 12, .scales_query = true};
  keys.Size({"num_attention_heads"}, attention.num_heads);
  attention.num_kv_heads = attention.num_heads;
  attention.head_size = spec.width / attention.num_heads;
  attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  keys.Probability("attention_dropout", attention.dropout);
  keys.Flag("enable_bias", attention.bias);
  attention.out_bias = attention.bias;

  spec.feed_forward = {.width = 3072, .activation = Activation::kRelu, .bias = attention.bias};
  keys.Size({"ffn_dim"}, spec.feed_forward.width);
  keys.ActivationKey("activation_function", spec.feed_forward.activation);

  keys.Ignore({"output_projection"});
  keys.MustBeOff("activation_dropout");
  keys.MustBeOff("layerdrop");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", attention.num_heads);
  keys.MustBeBelow("pad_token_id", spec.padding_token, "vocab_size", spec.vocab_size);

  spec.layers = {.token_embedding = "model.decoder.embed_tokens",
                 .position_embedding = "model.decoder.embed_positions",
                 .project_in = "model.decoder.project_in",
                 .blocks = "model.decoder.layers",
                 .block = {.attention_norm = "self_attn_layer_norm",
                           .query = "self_attn.q_proj",
                           .key = "self_attn.k_proj",
                           .value = "self_attn.v_proj",
                           .attention_out = "self_attn.out_proj",
                           .feed_norm = "final_layer_norm",
                           .feed = {.in = "fc1", .out = "fc2"}},
                 .final_norm = "model.decoder.final_layer_norm",
                 .project_out = "model.decoder.project_out",
                 .head = "lm_head"};
  spec.files = {.root = "model.decoder.", .embedding = "model.decoder.embed_tokens.weight"};
  return spec;
}

}  // namespace gemini::trainer
