// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen3 with experts, as Qwen2MoeForCausalLM and Qwen3MoeForCausalLM of transformers.
// Only the former has an expert for every token.
// Source: Yang et al., "Qwen2 Technical Report", arXiv:2407.10671; Yang et al., "Qwen3 Technical
//         Report", arXiv:2505.09388.
#include <cstdint>
#include <initializer_list>

#include "trainer/families/decoder_keys.h"
#include "trainer/families/expert_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

void ReadKeys(ConfigKeys& keys, ModelSpec& spec, std::initializer_list<const char*> count_keys) {
  ReadLlamaKeys(keys, spec, {.theta = 10000});
  spec.experts->normalises = false;
  spec.experts->rounds_weights = true;
  ReadExpertKeys(keys, spec, count_keys);
  ReadExpertBlocks(keys, spec);
  keys.Size({"moe_intermediate_size"}, spec.experts->width);
  keys.Flag("norm_topk_prob", spec.experts->normalises);
  const FeedNames names = {.gate = "gate_proj", .in = "up_proj", .out = "down_proj"};
  spec.layers.block.experts = {.part = "mlp",
                               .router = "gate",
                               .experts = "experts",
                               .expert = names,
                               .shared = "shared_expert",
                               .shared_gate = "shared_expert_gate"};
}

}  // namespace

ModelSpec MakeQwen2MoeSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 151936,
                                .max_sequence = 32768,
                                .width = 2048,
                                .num_blocks = 24,
                                .num_heads = 16,
                                .num_kv_heads = 16,
                                .feed_width = 5632});
  spec.attention.bias = true;
  keys.Flag("qkv_bias", spec.attention.bias);
  spec.experts = {.count = 60, .chosen = 4, .width = 1408, .shared_width = 5632};
  keys.Size({"shared_expert_intermediate_size"}, spec.experts->shared_width);
  ReadKeys(keys, spec, {"num_experts"});
  // Of the blocks before this one every second sees the window, if there is one.
  int64_t end_windowed = 28;
  keys.Size({"max_window_layers"}, end_windowed, /*minimum=*/0);
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    spec.kind_of_block.push_back(i % 2 == 0 && i < end_windowed ? 1 : 0);
  }
  ReadWindowedBlocks(keys, spec, ReadSwitchedWindow(keys));
  return spec;
}

ModelSpec MakeQwen3MoeSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec({.vocab_size = 151936,
                                .max_sequence = 32768,
                                .width = 2048,
                                .num_blocks = 24,
                                .num_heads = 32,
                                .num_kv_heads = 4,
                                .feed_width = 6144});
  spec.experts = {.count = 128, .chosen = 8, .width = 768};
  ReadKeys(keys, spec, {"num_local_experts", "num_experts"});
  ReadAttentionBias(keys, spec);
  NormHeads(spec);
  spec.kinds.front().window = ReadSwitchedWindow(keys);  // All blocks.
  keys.Ignore({"max_window_layers"});
  keys.MustBeOn("use_qk_norm");
  keys.MustBeOff("shared_expert_intermediate_size");
  keys.MustBeOff("qkv_bias");
  return spec;
}

}  // namespace gemini::trainer
