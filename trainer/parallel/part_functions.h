// SPDX-License-Identifier: Apache-2.0
// Exchanges tensors of which each rank has a part, side by side in one of the dimensions. Parts are
// put together before layers that read all of them, and sums are added up in parts behind layers.
// So each rank keeps its part alone: of hidden states, and of matrices.
// Shapes: a dimension counts from the first one, or if it is negative from the last one, as Torch's
//         do. Parts lie in it in the ranks' order.
// Graph:  no second derivative. Backward exchanges where it comes to a function, in all ranks
//         alike. A line of one rank exchanges nothing.
// Sends:  a gather or a sum in parts of n elements over g ranks is n (g - 1) / g elements a rank,
//         and backward sends as many.
// Errors: as tensor_exchange.h.
// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//         arXiv:2205.05198, section 4.2, for parts of sequences; van de Geijn and Watts, "SUMMA",
//         Concurrency 9 (1997), for panels of matrices, which are gathered here.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "torch/types.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns the ranks' parts put together. Backward returns this rank's part of the sum of their
// gradients.
torch::Tensor GatherParts(const torch::Tensor& part, int64_t dimension, const RankLine& line,
                          const std::string& site);
// Returns this rank's part of the sum of what ranks have. Backward puts the parts' gradients
// together.
torch::Tensor ReduceScatterParts(const torch::Tensor& whole, int64_t dimension,
                                 const RankLine& line, const std::string& site);

// A rank's part that was put together with others for several linear layers. Their backward puts
// it together once more, once for all of them, so that graphs keep the part alone.
class GatheredParts {
 public:
  GatheredParts(const torch::Tensor& part, int64_t dimension, const RankLine& line,
                std::string site);
  // Each layer that will read it in backward says so in forward, and asks for it once. Behind the
  // last one nothing is kept.
  void AddReader() { ++num_readers_; }
  torch::Tensor ForBackward();

 private:
  torch::Tensor part_;  // Without a graph.
  const int64_t dimension_;
  const RankLine line_;
  const std::string site_;
  torch::Tensor whole_;  // From the first reader to the last.
  int64_t num_readers_ = 0;
};

// The same as GatherParts, for layers that get `parts`, which lives as long as the graph. There are
// none of one rank alone.
torch::Tensor GatherParts(const torch::Tensor& part, int64_t dimension, const RankLine& line,
                          const std::string& site, std::weak_ptr<GatheredParts>& parts);

// The matrix of a linear layer.
struct MatrixParts {
  torch::Tensor weight;    // [out, in], or a part of it.
  bool is_in_out = false;  // It is [in, out].
  // The ranks that have its parts, each for a part of the input. Without them it is whole.
  RankLine line = {};
  std::string site = {};
};
// Returns x W^T + b for x that was put together of `parts`, which may be null; bias [out] or
// undefined. The matrix's parts are gathered here, and in backward once more. The product is a sum
// over the parts, in their order: 16 bits are rounded behind each of them.
torch::Tensor LinearOfParts(const torch::Tensor& x, const std::shared_ptr<GatheredParts>& parts,
                            const MatrixParts& matrix, const torch::Tensor& bias);

}  // namespace gemini::trainer
