// SPDX-License-Identifier: Apache-2.0
// Qwen2, Qwen2.5 and Qwen3 without experts, as Qwen2ForCausalLM and Qwen3ForCausalLM of
// transformers. Qwen3 norms each head, and has biases where the configuration says so.
// Source: Yang et al., "Qwen2 Technical Report", arXiv:2407.10671; Yang et al., "Qwen3 Technical
//         Report", arXiv:2505.09388.
#include <cstdint>

#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

constexpr DecoderSizes kSizes = {.vocab_size = 151936,
                                 .max_sequence = 32768,
                                 .width = 4096,
                                 .num_blocks = 32,
                                 .num_heads = 32,
                                 .num_kv_heads = 32,
                                 .feed_width = 22016};

void ReadKeys(ConfigKeys& keys, ModelSpec& spec) {
  ReadLlamaKeys(keys, spec, {.theta = 10000});
  // Blocks from here on see the window, if there is one.
  int64_t first_windowed = 28;
  keys.Size({"max_window_layers"}, first_windowed, /*minimum=*/0);
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    spec.kind_of_block.push_back(i >= first_windowed ? 1 : 0);
  }
  ReadWindowedBlocks(keys, spec, ReadSwitchedWindow(keys));
  keys.MustBeOff("use_mrope");
}

}  // namespace

ModelSpec MakeQwen2Spec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  spec.attention.bias = true;
  ReadKeys(keys, spec);
  keys.Ignore({"attention_bias"});  // It is as above, whatever a file says.
  return spec;
}

ModelSpec MakeQwen3Spec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  spec.attention.head_size = 128;
  ReadKeys(keys, spec);
  ReadAttentionBias(keys, spec);
  NormHeads(spec);
  return spec;
}

}  // namespace gemini::trainer
