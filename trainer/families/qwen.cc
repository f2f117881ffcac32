// SPDX-License-Identifier: Apache-2.0
// Qwen2, Qwen2.5 and Qwen3 without experts, as Qwen2ForCausalLM and Qwen3ForCausalLM of
// transformers. Qwen3 norms each head, and has biases where the configuration says so.
// Source: Yang et al., "Qwen2 Technical Report", arXiv:2407.10671; Yang et al., "Qwen3 Technical
//         Report", arXiv:2505.09388.
#include <cstddef>
#include <vector>

#include "trainer/families/decoder_keys.h"
#include "trainer/families/families.h"
#include "trainer/families/rotary_keys.h"

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
  ReadDecoderKeys(keys, spec);
  ReadRotary(keys, spec, {.theta = 10000});
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);
  bool has_windows = false;
  keys.Flag("use_sliding_window", has_windows);
  int64_t window = 4096;
  keys.Size({"sliding_window"}, window);
  int64_t first_windowed = 28;
  keys.Size({"max_window_layers"}, first_windowed, /*minimum=*/0);
  if (!has_windows || keys.IsNull("sliding_window")) {
    std::vector<size_t> all_full;
    keys.EachOneOf("layer_types", {"full_attention"}, static_cast<size_t>(spec.num_blocks),
                   all_full);
    return;
  }
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    spec.kind_of_block.push_back(i >= first_windowed ? 1 : 0);
  }
  ReadWindowedBlocks(keys, spec, window);
}

}  // namespace

ModelSpec MakeQwen2Spec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  spec.attention.bias = true;
  ReadKeys(keys, spec);
  return spec;
}

ModelSpec MakeQwen3Spec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  spec.attention.head_size = 128;
  spec.layers.block.query_norm = "self_attn.q_norm";
  spec.layers.block.key_norm = "self_attn.k_norm";
  ReadKeys(keys, spec);
  ReadAttentionBias(keys, spec);
  spec.attention.head_norm = spec.norm;
  return spec;
}

}  // namespace gemini::trainer
