// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4, as Phi3ForCausalLM of transformers.
// Source: Abdin et al., "Phi-3 Technical Report", arXiv:2404.14219; its configuration and model in
//         transformers.
#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {

ModelSpec MakePhi3Spec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 32064,
                                .max_sequence = 4096,
                                .width = 3072,
                                .num_blocks = 32,
                                .num_heads = 32,
                                .feed_width = 8192});
  spec.padding_token = 32000;
  spec.norm.epsilon = 1e-5;
  ReadDecoderKeys(keys, spec);
  ReadRotary(
      keys, spec, {},
      {.fraction = "partial_rotary_factor", .original_positions = 4096, .only_longrope = true});
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  keys.Probability("resid_pdrop", spec.residual_dropout);
  keys.MustBeOff("embd_pdrop");  // The class has it, and the model there takes no notice of it.
  keys.Size({"sliding_window"}, spec.kinds.front().window);
  keys.MustBeOff("lm_head_bias");
  // There are no such biases, whatever a file says. The others are of the releases' own code.
  keys.Ignore({"attention_bias", "full_attn_mod", "interpolate_factor", "mlp_bias"});

  spec.attention.layout = QueryKeyValueLayout::kJoined;
  spec.feed_forward.joined = true;
  spec.layers.block = {.attention_norm = "input_layernorm",
                       .query_key_value = "self_attn.qkv_proj",
                       .attention_out = "self_attn.o_proj",
                       .feed_norm = "post_attention_layernorm",
                       .feed = {.in = "mlp.gate_up_proj", .out = "mlp.down_proj"}};
  return spec;
}

}  // namespace gemini::trainer
