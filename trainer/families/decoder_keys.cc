// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/decoder_keys.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/strings/string_view.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {
namespace {

// As in torch.nn.Embedding a negative id counts from the end: some files of Llama 1 have -1.
void ReadPadding(ConfigKeys& keys, ModelSpec& spec) {
  if (keys.IsNull("pad_token_id")) spec.padding_token = -1;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  int64_t padding = kNone;
  keys.Size({"pad_token_id"}, padding, /*minimum=*/-spec.vocab_size);
  if (padding != kNone) spec.padding_token = padding < 0 ? padding + spec.vocab_size : padding;
  keys.MustBeBelow("pad_token_id", spec.padding_token, "vocab_size", spec.vocab_size);
}

}  // namespace

ModelSpec DecoderSpec(const DecoderSizes& sizes) {
  ModelSpec spec = {.vocab_size = sizes.vocab_size,
                    .max_sequence = sizes.max_sequence,
                    .width = sizes.width,
                    .num_blocks = sizes.num_blocks};
  spec.norm = {.kind = NormKind::kRms, .epsilon = 1e-6};
  spec.tied_head = false;
  spec.attention = {.num_heads = sizes.num_heads,
                    .num_kv_heads = sizes.num_kv_heads,
                    .head_size = sizes.head_size,
                    .bias = false,
                    .out_bias = false};
  spec.feed_forward = {
      .width = sizes.feed_width, .activation = Activation::kSilu, .gated = true, .bias = false};
  spec.layers = {
      .token_embedding = "model.embed_tokens",
      .blocks = "model.layers",
      .block = {.attention_norm = "input_layernorm",
                .query = "self_attn.q_proj",
                .key = "self_attn.k_proj",
                .value = "self_attn.v_proj",
                .attention_out = "self_attn.o_proj",
                .feed_norm = "post_attention_layernorm",
                .feed = {.gate = "mlp.gate_proj", .in = "mlp.up_proj", .out = "mlp.down_proj"}},
      .final_norm = "model.norm",
      .head = "lm_head"};
  spec.files = {.root = "model.",
                .embedding = "model.embed_tokens.weight",
                // The frequencies of rotary positions, in files of old.
                .ignored_endings = {".rotary_emb.inv_freq"}};
  return spec;
}

void ReadDecoderKeys(ConfigKeys& keys, ModelSpec& spec) {
  keys.Size({"vocab_size"}, spec.vocab_size);
  keys.Size({"max_position_embeddings"}, spec.max_sequence);
  keys.Size({"hidden_size"}, spec.width);
  keys.NumBlocks({"num_hidden_layers"}, spec.num_blocks);
  keys.Size({"intermediate_size"}, spec.feed_forward.width);
  spec.embedding_width = spec.width;
  ReadPadding(keys, spec);
  keys.Positive(spec.norm.kind == NormKind::kRms ? "rms_norm_eps" : "layer_norm_eps",
                spec.norm.epsilon);
  keys.Flag("tie_word_embeddings", spec.tied_head);
  keys.NotNegative("initializer_range", spec.initial_deviation);

  AttentionSpec& attention = spec.attention;
  keys.Size({"num_attention_heads"}, attention.num_heads);
  if (keys.IsNull("num_key_value_heads")) attention.num_kv_heads = 0;
  keys.Size({"num_key_value_heads"}, attention.num_kv_heads);
  if (attention.num_kv_heads == 0) attention.num_kv_heads = attention.num_heads;
  if (keys.IsNull("head_dim")) attention.head_size = 0;
  keys.Size({"head_dim"}, attention.head_size);
  if (attention.head_size == 0) {
    attention.head_size = std::max<int64_t>(spec.width / attention.num_heads, 1);
  }
  attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  keys.Probability("attention_dropout", attention.dropout);

  keys.MustBeOn("is_causal");
  keys.MustBeOff("use_bidirectional_attention");
  keys.MustBeOff("per_layer_config");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("num_attention_heads", attention.num_heads, "num_key_value_heads",
                  attention.num_kv_heads);
}

void ReadLlamaKeys(ConfigKeys& keys, ModelSpec& spec, const RotarySpec& rotary) {
  ReadDecoderKeys(keys, spec);
  ReadRotary(keys, spec, rotary);
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
}

void NormHeads(ModelSpec& spec) {
  spec.attention.head_norm = spec.norm;
  spec.layers.block.query_norm = "self_attn.q_norm";
  spec.layers.block.key_norm = "self_attn.k_norm";
}

void ReadAttentionBias(ConfigKeys& keys, ModelSpec& spec) {
  keys.Flag("attention_bias", spec.attention.bias);
  spec.attention.out_bias = spec.attention.bias;
}

int64_t ReadSwitchedWindow(ConfigKeys& keys) {
  bool is_on = false;
  keys.Flag("use_sliding_window", is_on);
  int64_t window = keys.IsNull("sliding_window") ? 0 : 4096;
  keys.Size({"sliding_window"}, window, /*minimum=*/0);  // transformers writes 0 for off.
  return is_on ? window : 0;
}

void ReadWindowedBlocks(ConfigKeys& keys, ModelSpec& spec, int64_t window) {
  const auto num_blocks = static_cast<size_t>(spec.num_blocks);
  if (window == 0) {
    spec.kind_of_block.clear();
    return keys.ListOf("layer_types", {"full_attention"}, num_blocks, spec.kind_of_block);
  }
  spec.kinds.push_back(spec.kinds.front());
  spec.kinds.back().window = window;
  // In the order of the kinds.
  static constexpr absl::string_view kKinds[] = {"full_attention", "sliding_attention"};
  keys.ListOf("layer_types", kKinds, num_blocks, spec.kind_of_block);
}

}  // namespace gemini::trainer
