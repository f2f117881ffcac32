// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX and Pythia, as GPTNeoXForCausalLM of transformers: attention and feed-forward part in
// parallel, each behind a norm of its own, and heads that are rotated in part.
// Source: Black et al., "GPT-NeoX-20B", arXiv:2204.06745; its configuration and model in
//         transformers.
#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {

ModelSpec MakeGptNeoxSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 50432,
                                .max_sequence = 2048,
                                .width = 6144,
                                .num_blocks = 44,
                                .num_heads = 64,
                                .feed_width = 24576});
  spec.norm = {.kind = NormKind::kLayer, .epsilon = 1e-5};
  spec.feed_forward.gated = false;
  spec.feed_forward.bias = true;
  spec.feed_forward.activation = Activation::kGelu;
  ReadDecoderKeys(keys, spec);
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  spec.padding_token = -1;  // Its embedding knows none.
  spec.attention.layout = QueryKeyValueLayout::kByHead;
  spec.attention.bias = true;
  ReadAttentionBias(keys, spec);
  keys.Probability("hidden_dropout", spec.residual_dropout);
  spec.embedding_dropout = spec.residual_dropout;
  bool is_parallel = true;
  keys.Flag("use_parallel_residual", is_parallel);
  spec.order = is_parallel ? BlockOrder::kParallelTwoNorms : BlockOrder::kNormsBefore;
  ReadRotary(keys, spec, {.rotated_fraction = 0.25},
             {.theta = "rotary_emb_base", .fraction = "rotary_pct"});
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", spec.attention.num_heads);
  // Names of other families for what this one has by its own, or lacks. The class's dropout is that
  // of a head for another task.
  keys.MustBe("num_key_value_heads", static_cast<double>(spec.attention.num_heads));
  keys.MustBe("head_dim", static_cast<double>(spec.width / spec.attention.num_heads));
  keys.MustBeOff("attention_probs_dropout_prob");
  keys.MustBeOff("hidden_dropout_prob");
  keys.Ignore({"classifier_dropout", "partial_rotary_factor", "rope_theta"});

  spec.layers = {.token_embedding = "gpt_neox.embed_in",
                 .blocks = "gpt_neox.layers",
                 .block = {.attention_norm = "input_layernorm",
                           .query_key_value = "attention.query_key_value",
                           .attention_out = "attention.dense",
                           .feed_norm = "post_attention_layernorm",
                           .feed = {.in = "mlp.dense_h_to_4h", .out = "mlp.dense_4h_to_h"}},
                 .final_norm = "gpt_neox.final_layer_norm",
                 .head = "embed_out"};
  spec.files = {.root = "gpt_neox.",
                .embedding = "gpt_neox.embed_in.weight",
                .head = "embed_out.weight",
                // Causal masks, and the frequencies of rotary positions.
                .ignored_endings = {".attention.bias", ".attention.masked_bias",
                                    ".attention.rotary_emb.inv_freq"}};
  return spec;
}

}  // namespace gemini::trainer
