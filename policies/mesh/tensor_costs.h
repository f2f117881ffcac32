// SPDX-License-Identifier: Apache-2.0
// Computes how many elements one rank sends when ranks share layers or sequences: for one product
// of hidden states and a matrix, and for a whole block, forward and backward together.
// Units:  elements, as doubles, for shares of them need not be whole.
// Counts: collectives send as rings do: a gather of n elements, or a sum in parts, sends
//         n (P - 1)/P, and a sum 2 n (P - 1)/P. Vectors, norms, embeddings and the head are left
//         out, and so are the sums that ZeRO or replicas make, but for 2.5d's sum over depth.
// Source: Megatron-LM (arXiv:1909.08053, and with parts of sequences 2205.05198), 2d (2104.05343),
//         2.5d (2105.14500), 3d (2105.14450), Ulysses (2309.14509), ring (2105.13120). In ours
//         backward of 3d gathers inputs and matrices again, and a ring passes no scores.
#pragma once
#include <cstdint>

#include "policies/mesh/tensor_grid.h"

namespace gemini::policies {

// Hidden states [tokens, in] times a matrix [in, out]. Its tokens are those of all ranks.
struct Product {
  double tokens = 0;
  double in = 0;
  double out = 0;
  // Whether the matrix leads out of attention or of the feed-forward part, not into it. In 1d such
  // a matrix is divided by rows, the other by columns.
  bool leads_out = false;
};

struct TensorPasses {
  int64_t num_forwards = 1;        // 2 where backward runs the forward pass again.
  bool divides_sequences = false;  // Between the layers, as Megatron does. In 1d alone.
};

// What one rank sends for a product. Products that read one tensor send `input` once.
struct TensorCosts {
  double input = 0;     // The hidden states that go in, and their gradients.
  double matrix = 0;    // The matrix and its gradients.
  double output = 0;    // The hidden states that come out, and their gradients.
  double replicas = 0;  // The gradients' sum over 2.5d's depth.
  double total() const { return input + matrix + output + replicas; }
};
TensorCosts ProductCosts(const TensorGrid& grid, const Product& product, TensorPasses passes = {});

// Returns what one rank sends for a block of 12 width^2 weights: query, key and value, which read
// one tensor, out, and two matrices of a feed-forward part that is four times as wide.
double BlockElements(const TensorGrid& grid, double tokens, double width, TensorPasses passes = {});

// What one rank sends for the attention of a block when `num_ranks` share sequences of `tokens` in
// all. Keys and values are `key_width` wide each, queries and results `width`.
struct UlyssesCosts {
  double in = 0;   // Queries, keys and values, and their gradients.
  double out = 0;  // Results, and their gradients.
};
UlyssesCosts UlyssesBlockCosts(int64_t num_ranks, double tokens, double width, double key_width,
                               int64_t num_forwards = 1);
struct RingCosts {
  double keys = 0;       // Keys and values, in each forward and in backward.
  double gradients = 0;  // Those of keys and values, which also go back to their rank.
};
RingCosts RingBlockCosts(int64_t num_ranks, double tokens, double key_width,
                         int64_t num_forwards = 1);

}  // namespace gemini::policies
