// SPDX-License-Identifier: Apache-2.0
// Reads what Llama and the decoders after it share: the names of their layers, and most keys of
// config.json.
#pragma once
#include <cstdint>

#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// What keys that are left out mean.
struct DecoderSizes {
  int64_t vocab_size = 0;
  int64_t max_sequence = 0;
  int64_t width = 0;
  int64_t num_blocks = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // 0: as many as there are query heads.
  int64_t head_size = 0;     // 0: the heads share the width.
  int64_t feed_width = 0;
};

// Returns a spec with the names of these families, RMS norms before each part, a gated feed-forward
// part with SiLU, no biases, and a head of its own.
ModelSpec DecoderSpec(const DecoderSizes& sizes);

// Reads the keys for sizes, norm, padding, ties, heads and dropout into `spec`, which holds what
// those mean that are left out. Families read activations, biases and positions themselves.
void ReadDecoderKeys(ConfigKeys& keys, ModelSpec& spec);

// Reads, beside those, rotation and activation by the keys that Llama has. `rotary` is what keys
// that are left out mean.
void ReadLlamaKeys(ConfigKeys& keys, ModelSpec& spec, const RotarySpec& rotary);

// Norms each head of query and key by a norm of the spec's kind.
void NormHeads(ModelSpec& spec);

// Reads whether query, key, value and output have biases.
void ReadAttentionBias(ConfigKeys& keys, ModelSpec& spec);

// Returns the window of families that switch it on and off by a key of its own. 0 means off.
int64_t ReadSwitchedWindow(ConfigKeys& keys);

// Adds a second kind of block, which sees a window of `window` tokens, and reads which blocks are
// of which kind. spec.kind_of_block holds the family's default. If the window is 0, all blocks see
// all.
void ReadWindowedBlocks(ConfigKeys& keys, ModelSpec& spec, int64_t window);

}  // namespace gemini::trainer
