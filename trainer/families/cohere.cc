// SPDX-License-Identifier: Apache-2.0
// Command R, as CohereForCausalLM of transformers.
// Source: its configuration and model there; parallel parts are those of Chowdhery et al., "PaLM",
//         arXiv:2204.02311, section 2.
#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakeCohereSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 256000,
                                .max_sequence = 8192,
                                .width = 8192,
                                .num_blocks = 40,
                                .num_heads = 64,
                                .feed_width = 22528});
  spec.padding_token = 0;
  spec.tied_head = true;
  spec.norm = {.kind = NormKind::kLayer, .epsilon = 1e-5, .bias = false};
  spec.order = BlockOrder::kParallel;
  spec.layers.block.feed_norm.clear();
  ReadLlamaKeys(keys, spec, {.theta = 500000, .interleaved = true, .in_fp32 = true});
  ReadAttentionBias(keys, spec);
  spec.logit_scale = 0.0625;
  keys.Positive("logit_scale", spec.logit_scale);
  keys.Ignore({"pretraining_tp"});
  bool norms_heads = false;
  keys.Flag("use_qk_norm", norms_heads);
  if (norms_heads) {
    NormHeads(spec);
    spec.attention.norms_heads_apart = true;
  }
  return spec;
}

}  // namespace gemini::trainer
