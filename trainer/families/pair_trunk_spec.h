// SPDX-License-Identifier: Apache-2.0
// Describes a trunk that refines two things at once, a multiple-sequence alignment and what is
// known about each pair of residues: its sizes, and what its tensors are called. PairTrunk is a
// model of it, and PairBlock one of its blocks (trainer/models/pair_trunk_model.h, pair_trunk.h).
// No Torch.
// Names:  of layers, from the block on: a layer "mlp_pair.mlp.1" of block 3 has the tensors
//         "<blocks>.3.mlp_pair.mlp.1.weight" and "<blocks>.3.mlp_pair.mlp.1.bias". Those that stand
//         here are EsmFold's for all that EsmFold has, and OpenFold's for the alignment (Lin et
//         al., "Evolutionary-scale prediction of atomic-level protein structure with a language
//         model", Science 379, 2023; Ahdritz et al., "OpenFold", Nature Methods 21, 2024). Those of
//         the embedding are our own.
// Source: Jumper et al., "Highly accurate protein structure prediction with AlphaFold", Nature 596,
//         2021, supplementary methods 1.5 and 1.6, Algorithms 3 to 15.
#pragma once
#include <cstdint>
#include <string>

namespace gemini::trainer {

// Query, key, value and gate have num_heads * head_size elements.
struct AxialHeads {
  int64_t num_heads = 1;
  int64_t head_size = 1;
};

// The names of gated attention along one of two axes.
struct AxialAttentionNames {
  std::string norm = {};
  std::string bias_norm = {};  // Empty where the bias is made of what attends, which is normed.
  std::string bias = {};       // Empty where there is no bias.
  std::string query = {};
  std::string key = {};
  std::string value = {};
  std::string gate = {};
  std::string out = {};
};

struct OuterProductMeanNames {
  std::string norm = {};
  std::string left = {};
  std::string right = {};
  std::string out = {};
};

// Left is the "a" of the paper, and right is its "b".
struct TriangleProductNames {
  std::string norm_in = {};
  std::string left_gate = {};
  std::string left = {};
  std::string right_gate = {};
  std::string right = {};
  std::string norm_out = {};
  std::string out = {};
  std::string gate = {};
};

struct TransitionNames {
  std::string norm = {};
  std::string in = {};
  std::string out = {};
};

// The names in a block, in the order of first use.
struct PairBlockNames {
  AxialAttentionNames msa_rows = {.norm = "msa_att_row.layer_norm_m",
                                  .bias_norm = "msa_att_row.layer_norm_z",
                                  .bias = "msa_att_row.linear_z",
                                  .query = "msa_att_row.mha.linear_q",
                                  .key = "msa_att_row.mha.linear_k",
                                  .value = "msa_att_row.mha.linear_v",
                                  .gate = "msa_att_row.mha.linear_g",
                                  .out = "msa_att_row.mha.linear_o"};
  // OpenFold's files have the level "_msa_att".
  AxialAttentionNames msa_columns = {.norm = "msa_att_col._msa_att.layer_norm_m",
                                     .query = "msa_att_col._msa_att.mha.linear_q",
                                     .key = "msa_att_col._msa_att.mha.linear_k",
                                     .value = "msa_att_col._msa_att.mha.linear_v",
                                     .gate = "msa_att_col._msa_att.mha.linear_g",
                                     .out = "msa_att_col._msa_att.mha.linear_o"};
  TransitionNames msa_transition = {.norm = "msa_transition.layer_norm",
                                    .in = "msa_transition.linear_1",
                                    .out = "msa_transition.linear_2"};
  OuterProductMeanNames outer_product_mean = {.norm = "outer_product_mean.layer_norm",
                                              .left = "outer_product_mean.linear_1",
                                              .right = "outer_product_mean.linear_2",
                                              .out = "outer_product_mean.linear_out"};
  TriangleProductNames outgoing = {.norm_in = "tri_mul_out.layer_norm_in",
                                   .left_gate = "tri_mul_out.linear_a_g",
                                   .left = "tri_mul_out.linear_a_p",
                                   .right_gate = "tri_mul_out.linear_b_g",
                                   .right = "tri_mul_out.linear_b_p",
                                   .norm_out = "tri_mul_out.layer_norm_out",
                                   .out = "tri_mul_out.linear_z",
                                   .gate = "tri_mul_out.linear_g"};
  TriangleProductNames incoming = {.norm_in = "tri_mul_in.layer_norm_in",
                                   .left_gate = "tri_mul_in.linear_a_g",
                                   .left = "tri_mul_in.linear_a_p",
                                   .right_gate = "tri_mul_in.linear_b_g",
                                   .right = "tri_mul_in.linear_b_p",
                                   .norm_out = "tri_mul_in.layer_norm_out",
                                   .out = "tri_mul_in.linear_z",
                                   .gate = "tri_mul_in.linear_g"};
  AxialAttentionNames starting_node = {.norm = "tri_att_start.layer_norm",
                                       .bias = "tri_att_start.linear",
                                       .query = "tri_att_start.mha.linear_q",
                                       .key = "tri_att_start.mha.linear_k",
                                       .value = "tri_att_start.mha.linear_v",
                                       .gate = "tri_att_start.mha.linear_g",
                                       .out = "tri_att_start.mha.linear_o"};
  AxialAttentionNames ending_node = {.norm = "tri_att_end.layer_norm",
                                     .bias = "tri_att_end.linear",
                                     .query = "tri_att_end.mha.linear_q",
                                     .key = "tri_att_end.mha.linear_k",
                                     .value = "tri_att_end.mha.linear_v",
                                     .gate = "tri_att_end.mha.linear_g",
                                     .out = "tri_att_end.mha.linear_o"};
  TransitionNames pair_transition = {
      .norm = "mlp_pair.mlp.0", .in = "mlp_pair.mlp.1", .out = "mlp_pair.mlp.3"};
};

// The names of the tables that are embedded, from the model's root.
struct PairEmbeddingNames {
  std::string residues = "embedder.residues";
  std::string first_sequence = "embedder.first_sequence";
  std::string left = "embedder.left";
  std::string right = "embedder.right";
  std::string relative_positions = "embedder.relative_positions";
};

// All sizes are >= 1.
struct PairTrunkSpec {
  int64_t num_sequences = 1;       // Of an alignment.
  int64_t msa_width = 0;           // Elements of a residue of one sequence of the alignment.
  int64_t pair_width = 0;          // Elements of a pair of residues.
  AxialHeads msa_heads = {};       // Of both attentions to the alignment.
  AxialHeads triangle_heads = {};  // Of both attentions to the pairs.
  int64_t triangle_width = 0;      // Between the linear layers of a triangle multiplication.
  int64_t outer_width = 0;         // Of each factor of the outer product.
  int64_t transition_factor = 4;   // A transition is so much wider inside than outside.
  double norm_epsilon = 1e-5;      // Of all norms, which are layer norms.
  // Residues that are further apart in the sequence than this share what is learned of their place.
  int64_t relative_positions = 32;
  int64_t num_bins = 64;  // Of distances.
  PairEmbeddingNames embedding = {};
  PairBlockNames block = {};
};

}  // namespace gemini::trainer
