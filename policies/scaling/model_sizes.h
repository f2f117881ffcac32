// SPDX-License-Identifier: Apache-2.0
// Describes a decoder-only transformer to the forecast for many ranks: the sizes of its matrices,
// from which its arithmetic, its parameters and what it keeps for backward follow. Vectors, as
// norms and biases, are left out: they are less than a thousandth.
// Units:  elements, as doubles, for shares of them need not be whole; a multiply-add is two FLOP.
// Pure.
#pragma once
#include <cstdint>
#include <vector>

namespace gemini::policies {

// Matrices of a block that read one tensor, as query, key and value; or one that leads back to the
// hidden states.
struct MatrixSizes {
  double in = 0;
  double out = 0;
  bool leads_out = false;
  double copies = 1;       // Experts.
  double token_share = 1;  // The part of all tokens that each copy reads.
  // It reads what another matrix reads, or what it makes is added to another's, and so exchanged
  // with that: as experts read what their router reads.
  bool shares_exchange = false;
  // Ranks that share layers divide it into so many parts, and have copies where they are more, as
  // of few key heads. 0: into any number.
  int64_t most_parts = 0;
  double parameters() const { return in * out * copies; }
  double flops_of_token() const { return 2 * in * out * copies * token_share; }
  bool operator==(const MatrixSizes&) const = default;
};

struct BlockSizes {
  std::vector<MatrixSizes> matrices;  // In the order in which they are used.
  double query_width = 0;             // Of all heads.
  double key_width = 0;
  int64_t num_key_heads = 1;
  double seen_tokens = 0;  // To so many a token attends, on the average.
  // Between gated matrices an activation and a product are kept, one of them beside what the
  // matrices read and write: so wide. 0: nothing is gated.
  double gated_width = 0;
  // What of a token is read or written beside products: by activations, and where heads are turned.
  double moved_between = 0;

  double parameters() const;
  double attention_flops_of_token() const { return 4 * query_width * seen_tokens; }
  // Returns the FLOP of the forward pass. Backward takes twice as many.
  double flops_of_token() const;
  // What is kept of a token from forward to backward, without scores and masks, as where attention
  // is fused and dropout is counted: the inputs of two norms and of what reads them, and what lies
  // between matrices. In 1d ranks have the former whole and the latter in parts (Korthikanti et
  // al., arXiv:2205.05198, section 4).
  double kept_whole(double width) const { return 4 * width; }
  static double kept_between(const MatrixSizes& matrix) {
    return (matrix.leads_out ? matrix.in : matrix.out) * matrix.copies * matrix.token_share;
  }
  double kept_between() const;
  bool operator==(const BlockSizes&) const = default;
};

// In which ways ranks can share the layers and the sequences of a model, as far as its sizes
// foretell it. All models can be divided by ZeRO and into the stages of a pipeline.
struct SharingWays {
  bool in_lines = true;          // They share layers by 1d.
  bool in_grids = true;          // By 2d, 2.5d and 3d.
  bool between_layers = true;    // Ranks of a line have parts of sequences there, as Megatron's.
  bool on_sequence_axis = true;  // Ranks share sequences in all layers: Ulysses and rings.
  bool operator==(const SharingWays&) const = default;
};

struct ModelSizes {
  std::vector<BlockSizes> blocks;
  double width = 0;
  double embedding_parameters = 0;   // Of tables.
  double projection_parameters = 0;  // Of a matrix behind them, and of one before the head.
  double head_parameters = 0;        // Of the matrix that makes logits, also where it is a table.
  bool tied_head = true;             // It is the table of the embedding.
  // What ranks that share layers divide.
  int64_t num_heads = 1;
  int64_t num_key_heads = 1;
  // Whether ranks that are more than key heads have copies of them. They have none where the
  // matrices of query, key and value are one.
  bool copies_key_heads = true;
  int64_t feed_width = 1;  // Between the matrices of a feed-forward part; of several kinds, what
                           // divides all their widths.
  bool has_experts = false;
  SharingWays sharing = {};

  double parameters() const;
  // Returns the FLOP of forward and backward. Attention counts as far as the token sees.
  double flops_of_token() const;
};

// A model of GPT's shape: blocks of 12 width^2 weights, a tied table, no table of positions.
struct GptShape {
  int64_t num_blocks = 1;
  int64_t width = 1;
  int64_t num_heads = 1;
  int64_t vocabulary = 1;
  int64_t sequence = 1;  // Tokens; one attends to half of them, on the average.
};
ModelSizes SizesOf(const GptShape& shape);

}  // namespace gemini::policies
