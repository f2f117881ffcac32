// SPDX-License-Identifier: Apache-2.0
// A pair trunk, which no class of transformers is: an alignment and the pairs of its residues
// refine each other. The keys are our own, and their defaults the sizes of the paper's first stage
// of training.
// Source: Jumper et al., "Highly accurate protein structure prediction with AlphaFold", Nature 596,
//         2021, supplementary methods 1.5, 1.6, 1.9.8 and 1.9.9, and table 4.
#include <utility>

#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakePairTrunkSpec(ConfigKeys& keys) {
  ModelSpec spec = {.vocab_size = 23, .max_sequence = 256, .width = 256, .num_blocks = 48};
  PairTrunkSpec trunk = {.num_sequences = 128,
                         .pair_width = 128,
                         .msa_heads = {.num_heads = 8, .head_size = 32},
                         .triangle_heads = {.num_heads = 4, .head_size = 32},
                         .triangle_width = 128,
                         .outer_width = 32};
  struct SizeKey {
    const char* name;
    int64_t& value;
    int64_t most;
  };
  // With these bounds all tensors that live at one time have less than 2^62 bytes. The largest are
  // scores of attention, of 2^26 residues in a batch.
  const SizeKey sizes[] = {
      {"vocab_size", spec.vocab_size, 1 << 16},
      {"num_sequences", trunk.num_sequences, 1 << 12},
      {"max_position_embeddings", spec.max_sequence, 1 << 12},
      {"msa_width", spec.width, 1 << 13},
      {"pair_width", trunk.pair_width, 1 << 13},
      {"num_hidden_layers", spec.num_blocks, 1 << 16},
      {"msa_num_heads", trunk.msa_heads.num_heads, 1 << 6},
      {"msa_head_size", trunk.msa_heads.head_size, 1 << 10},
      {"triangle_num_heads", trunk.triangle_heads.num_heads, 1 << 6},
      {"triangle_head_size", trunk.triangle_heads.head_size, 1 << 10},
      {"triangle_width", trunk.triangle_width, 1 << 13},
      {"outer_width", trunk.outer_width, 1 << 8},
      {"transition_factor", trunk.transition_factor, 1 << 4},
      {"relative_positions", trunk.relative_positions, 1 << 13},
      {"num_bins", trunk.num_bins, 1 << 10},
  };
  for (const SizeKey& size : sizes) {
    keys.Size({size.name}, size.value);
    keys.MustNotExceed(size.name, size.value, "the most that is known", size.most);
  }
  keys.Positive("layer_norm_eps", trunk.norm_epsilon);
  keys.NotNegative("initializer_range", spec.initial_deviation);
  keys.MustBeOff("quantization_config");
  trunk.msa_width = spec.width;
  spec.embedding_width = spec.width;
  spec.pair_trunk = std::move(trunk);
  spec.attention.causal = false;
  spec.final_norm = false;
  spec.tied_head = false;
  spec.head_bias = true;
  spec.classifier = {.bias = true};
  spec.layers = {
      .blocks = "trunk.blocks", .head = "masked_msa_head", .classifier = "distogram_head"};
  spec.files = {.embedding = "embedder.residues.weight", .head = "masked_msa_head.weight"};
  return spec;
}

}  // namespace gemini::trainer
