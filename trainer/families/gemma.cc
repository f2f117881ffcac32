// SPDX-License-Identifier: Apache-2.0
// Gemma 1 to 3 (text), as GemmaForCausalLM, Gemma2ForCausalLM and Gemma3ForCausalLM of
// transformers.
// Source: Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology",
//         arXiv:2403.08295; "Gemma 2", arXiv:2408.00118; "Gemma 3 Technical Report",
//         arXiv:2503.19786.
#include <cmath>

#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {
namespace {

ModelSpec DefaultSpec(const DecoderSizes& sizes) {
  ModelSpec spec = DecoderSpec(sizes);
  spec.norm.adds_one = true;
  spec.padding_token = 0;
  spec.tied_head = true;
  spec.feed_forward.activation = Activation::kGeluTanh;
  return spec;
}

void ReadKeys(ConfigKeys& keys, ModelSpec& spec) {
  ReadDecoderKeys(keys, spec);
  ReadAttentionBias(keys, spec);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.width));
}

// Gemma 2 and 3 have norms around each part, and some of their blocks see a window.
ModelSpec SandwichSpec(int64_t vocab_size, int64_t max_sequence) {
  ModelSpec spec = DefaultSpec({.vocab_size = vocab_size,
                                .max_sequence = max_sequence,
                                .width = 2304,
                                .num_blocks = 26,
                                .num_heads = 8,
                                .num_kv_heads = 4,
                                .head_size = 256,
                                .feed_width = 9216});
  spec.order = BlockOrder::kSandwich;
  BlockNames& names = spec.layers.block;
  names.attention_out_norm = "post_attention_layernorm";
  names.feed_norm = "pre_feedforward_layernorm";
  names.feed_out_norm = "post_feedforward_layernorm";
  return spec;
}

// Every `pattern`-th block sees all that is before a token.
void ReadSandwichKeys(ConfigKeys& keys, ModelSpec& spec, int64_t pattern) {
  ReadKeys(keys, spec);
  keys.ActivationKey("hidden_activation", spec.feed_forward.activation);
  keys.Ignore({"hidden_act", "sliding_window_size"});
  double scalar = 256;
  keys.Positive("query_pre_attn_scalar", scalar);
  spec.attention.scale = std::pow(scalar, -0.5);
  keys.PositiveOrNull("final_logit_softcapping", spec.logit_soft_cap);
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", spec.attention.num_heads);
  keys.MustNotBeNull("sliding_window");
  int64_t window = 4096;
  keys.Size({"sliding_window"}, window);
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    spec.kind_of_block.push_back((i + 1) % pattern != 0 ? 1 : 0);
  }
  ReadWindowedBlocks(keys, spec, window);
}

}  // namespace

ModelSpec MakeGemmaSpec(ConfigKeys& keys) {
  ModelSpec spec = DefaultSpec({.vocab_size = 256000,
                                .max_sequence = 8192,
                                .width = 3072,
                                .num_blocks = 28,
                                .num_heads = 16,
                                .num_kv_heads = 16,
                                .head_size = 256,
                                .feed_width = 24576});
  ReadKeys(keys, spec);
  ReadRotary(keys, spec, {.theta = 10000});
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  // The first files say "gelu", and mean this.
  Activation& activation = spec.feed_forward.activation;
  if (activation == Activation::kGelu) activation = Activation::kGeluTanh;
  keys.Ignore({"hidden_activation"});
  return spec;
}

ModelSpec MakeGemma2Spec(ConfigKeys& keys) {
  ModelSpec spec = SandwichSpec(/*vocab_size=*/256000, /*max_sequence=*/8192);
  spec.attention.soft_cap = 50;
  spec.logit_soft_cap = 30;
  keys.PositiveOrNull("attn_logit_softcapping", spec.attention.soft_cap);
  ReadSandwichKeys(keys, spec, /*pattern=*/2);
  ReadRotary(keys, spec, {.theta = 10000});
  return spec;
}

ModelSpec MakeGemma3TextSpec(ConfigKeys& keys) {
  ModelSpec spec = SandwichSpec(/*vocab_size=*/262208, /*max_sequence=*/131072);
  int64_t pattern = 6;
  keys.Size({"sliding_window_pattern"}, pattern);
  ReadSandwichKeys(keys, spec, pattern);
  NormHeads(spec);
  keys.Ignore({"_sliding_window_pattern"});
  keys.MustBeOff("attn_logit_softcapping");  // transformers reads it, and does nothing with it.
  ReadRotaryOfKinds(keys, spec, {.theta = 1e6}, {.theta = 10000});
  return spec;
}

}  // namespace gemini::trainer
