// SPDX-License-Identifier: Apache-2.0
// Llama 1 to 3, as LlamaForCausalLM of transformers.
// Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971;
//         Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783.
#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {

ModelSpec MakeLlamaSpec(ConfigKeys& keys) {
  ModelSpec spec = {.vocab_size = 32000, .max_sequence = 2048, .width = 4096, .num_blocks = 32};
  keys.Size({"vocab_size"}, spec.vocab_size);
  keys.Size({"max_position_embeddings"}, spec.max_sequence);
  keys.Size({"hidden_size"}, spec.width);
  keys.Size({"num_hidden_layers"}, spec.num_blocks);
  spec.embedding_width = spec.width;
  // As in torch.nn.Embedding a negative id counts from the end: some files of Llama 1 have -1.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  int64_t padding = kNone;
  keys.Size({"pad_token_id"}, padding, /*minimum=*/-spec.vocab_size);
  if (padding != kNone) spec.padding_token = padding < 0 ? padding + spec.vocab_size : padding;
  spec.norm = {.kind = NormKind::kRms, .epsilon = 1e-6};
  keys.Positive("rms_norm_eps", spec.norm.epsilon);
  spec.tied_head = false;
  keys.Flag("tie_word_embeddings", spec.tied_head);
  spec.rotary = ReadRotary(keys, spec.max_sequence);

  AttentionSpec& attention = spec.attention;
  attention = {.num_heads = 32, .bias = false};
  keys.Size({"num_attention_heads"}, attention.num_heads);
  attention.num_kv_heads = attention.num_heads;
  keys.Size({"num_key_value_heads"}, attention.num_kv_heads);
  attention.head_size = std::max<int64_t>(spec.width / attention.num_heads, 1);
  keys.Size({"head_dim"}, attention.head_size);
  attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  keys.Flag("attention_bias", attention.bias);
  attention.out_bias = attention.bias;
  keys.Probability("attention_dropout", attention.dropout);

  spec.feed_forward = {
      .width = 11008, .activation = Activation::kSilu, .gated = true, .bias = false};
  keys.Size({"intermediate_size"}, spec.feed_forward.width);
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  keys.Flag("mlp_bias", spec.feed_forward.bias);

  keys.MustBeOn("is_causal");
  keys.MustBeOff("per_layer_config");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", attention.num_heads);
  keys.MustDivide("num_attention_heads", attention.num_heads, "num_key_value_heads",
                  attention.num_kv_heads);
  keys.MustDivide("head_dim", attention.head_size, "rotary pairs of", 2);
  keys.MustBeBelow("pad_token_id", spec.padding_token, "vocab_size", spec.vocab_size);

  spec.layers = {.token_embedding = "model.embed_tokens",
                 .blocks = "model.layers",
                 .block = {.attention_norm = "input_layernorm",
                           .query = "self_attn.q_proj",
                           .key = "self_attn.k_proj",
                           .value = "self_attn.v_proj",
                           .attention_out = "self_attn.o_proj",
                           .feed_norm = "post_attention_layernorm",
                           .feed_gate = "mlp.gate_proj",
                           .feed_in = "mlp.up_proj",
                           .feed_out = "mlp.down_proj"},
                 .final_norm = "model.norm",
                 .head = "lm_head"};
  spec.files = {.root = "model.",
                .embedding = "model.embed_tokens.weight",
                // The frequencies of rotary positions, in files of old.
                .ignored_endings = {".rotary_emb.inv_freq"}};
  return spec;
}

}  // namespace gemini::trainer
