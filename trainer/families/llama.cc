// SPDX-License-Identifier: Apache-2.0
// Llama 1 to 3, as LlamaForCausalLM of transformers.
// Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971;
//         Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783.
#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakeLlamaSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 32000,
                                .max_sequence = 2048,
                                .width = 4096,
                                .num_blocks = 32,
                                .num_heads = 32,
                                .feed_width = 11008});
  ReadLlamaKeys(keys, spec, {.theta = 10000});
  ReadAttentionBias(keys, spec);
  keys.Flag("mlp_bias", spec.feed_forward.bias);
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", spec.attention.num_heads);
  keys.MustBeOff("rope_interleaved");
  keys.Ignore({"is_llama_config", "pretraining_tp"});
  return spec;
}

}  // namespace gemini::trainer
