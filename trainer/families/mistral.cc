// SPDX-License-Identifier: Apache-2.0
// Mistral and Mixtral, as MistralForCausalLM and MixtralForCausalLM of transformers.
// Source: Jiang et al., "Mistral 7B", arXiv:2310.06825; "Mixtral of Experts", arXiv:2401.04088.
#include <cstddef>
#include <cstdint>

#include "trainer/families/decoder_keys.h"
#include "trainer/families/expert_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

constexpr DecoderSizes kSizes = {.vocab_size = 32000,
                                 .max_sequence = 131072,
                                 .width = 4096,
                                 .num_blocks = 32,
                                 .num_heads = 32,
                                 .num_kv_heads = 8,
                                 .feed_width = 14336};

// Returns the window, or 0 if there is none. `theta` and `window` are what keys that are left out
// mean.
int64_t ReadKeys(ConfigKeys& keys, ModelSpec& spec, double theta, int64_t window) {
  ReadLlamaKeys(keys, spec, {.theta = theta});
  keys.Ignore({"attention_bias", "mlp_bias"});  // There are none, whatever a file says.
  if (keys.IsNull("sliding_window")) window = 0;
  keys.Size({"sliding_window"}, window);
  return window;
}

}  // namespace

ModelSpec MakeMistralSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  const int64_t window = ReadKeys(keys, spec, /*theta=*/10000, /*window=*/4096);
  // All blocks see the window, unless layer_types says otherwise, as for Ministral.
  spec.kind_of_block.assign(static_cast<size_t>(spec.num_blocks), 1);
  ReadWindowedBlocks(keys, spec, window);
  return spec;
}

ModelSpec MakeMixtralSpec(ConfigKeys& keys) {
  ModelSpec spec = DecoderSpec(kSizes);
  spec.norm.epsilon = 1e-5;
  spec.kinds.front().window = ReadKeys(keys, spec, /*theta=*/1e6, /*window=*/0);
  spec.experts = {.count = 8, .chosen = 2, .width = spec.feed_forward.width};
  ReadExpertKeys(keys, spec, {"num_local_experts", "num_experts"});
  keys.MustBeOff("router_jitter_noise");
  spec.layers.block.experts = {.part = "block_sparse_moe",
                               .router = "gate",
                               .experts = "experts",
                               .expert = {.gate = "w1", .in = "w3", .out = "w2"}};
  return spec;
}

}  // namespace gemini::trainer
