// SPDX-License-Identifier: Apache-2.0
// GPT-2, as GPT2LMHeadModel of transformers.
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
#include <cmath>

#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakeGpt2Spec(ConfigKeys& keys) {
  ModelSpec spec = {.vocab_size = 50257, .max_sequence = 1024, .width = 768, .num_blocks = 12};
  keys.Size({"vocab_size"}, spec.vocab_size);
  keys.Size({"n_positions", "max_position_embeddings"}, spec.max_sequence);
  keys.Size({"n_embd", "hidden_size"}, spec.width);
  keys.NumBlocks({"n_layer", "num_hidden_layers"}, spec.num_blocks);
  spec.embedding_width = spec.width;
  spec.positions = {.rows = spec.max_sequence};
  keys.Positive("layer_norm_epsilon", spec.norm.epsilon);
  spec.embedding_dropout = spec.residual_dropout = 0.1;
  keys.Probability("resid_pdrop", spec.residual_dropout);
  keys.Probability("embd_pdrop", spec.embedding_dropout);
  keys.Flag("tie_word_embeddings", spec.tied_head);
  keys.NotNegative("initializer_range", spec.initial_deviation);
  spec.block_matrices = MatrixLayout::kInOut;

  AttentionSpec& attention = spec.attention;
  attention = {.num_heads = 12, .layout = QueryKeyValueLayout::kJoined, .dropout = 0.1};
  keys.Size({"n_head", "num_attention_heads"}, attention.num_heads);
  attention.num_kv_heads = attention.num_heads;
  attention.head_size = spec.width / attention.num_heads;
  keys.Probability("attn_pdrop", attention.dropout);
  bool scales = true;
  keys.Flag("scale_attn_weights", scales);
  if (scales) {
    attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  }
  keys.Flag("scale_attn_by_inverse_layer_idx", attention.divides_scale_by_depth);
  // The first changes nothing in fp32, and no other is read by a causal model.
  keys.Ignore({"reorder_and_upcast_attn", "n_ctx", "n_special", "output_past", "pad_token_id",
               "predict_special_tokens", "summary_activation", "summary_first_dropout",
               "summary_proj_to_labels", "summary_type", "summary_use_proj"});

  spec.feed_forward = {.width = 4 * spec.width, .activation = Activation::kGeluTanh};
  keys.Size({"n_inner"}, spec.feed_forward.width);
  keys.ActivationKey("activation_function", spec.feed_forward.activation);

  keys.MustBeOff("add_cross_attention");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("n_embd", spec.width, "n_head", attention.num_heads);

  spec.layers = {.token_embedding = "transformer.wte",
                 .position_embedding = "transformer.wpe",
                 .blocks = "transformer.h",
                 .block = {.attention_norm = "ln_1",
                           .query_key_value = "attn.c_attn",
                           .attention_out = "attn.c_proj",
                           .feed_norm = "ln_2",
                           .feed = {.in = "mlp.c_fc", .out = "mlp.c_proj"}},
                 .final_norm = "transformer.ln_f",
                 .head = "lm_head"};
  spec.files = {.root = "transformer.",
                .embedding = "transformer.wte.weight",
                // Causal masks, which transformers ignores too.
                .ignored_endings = {".attn.bias", ".attn.masked_bias"}};
  return spec;
}

}  // namespace gemini::trainer
