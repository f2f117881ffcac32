// SPDX-License-Identifier: Apache-2.0
// Mistral, as MistralForCausalLM of transformers.
// Source: Jiang et al., "Mistral 7B", arXiv:2310.06825.
#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

namespace gemini::trainer {

ModelSpec MakeMistralSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 32000,
                                .max_sequence = 131072,
                                .width = 4096,
                                .num_blocks = 32,
                                .num_heads = 32,
                                .num_kv_heads = 8,
                                .feed_width = 14336});
  ReadDecoderKeys(keys, spec);
  ReadRotary(keys, spec, {.theta = 10000});
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  int64_t& window = spec.kinds.front().window;
  if (!keys.IsNull("sliding_window")) window = 4096;
  keys.Size({"sliding_window"}, window);
  return spec;
}

}  // namespace gemini::trainer
