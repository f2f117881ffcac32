// SPDX-License-Identifier: Apache-2.0
// What ranks that share layers in 1d exchange where each has a part of every sequence between its
// layers: tensors are put together before the first layer of two, and added up in parts behind the
// second one, so that norms, dropout and what is added to run on parts.
// Shapes: a part is [batch, tokens, width] of [batch, ranks * tokens, width]; or [rows, width], of
//         which all ranks' rows are put together in the ranks' order.
// Graph:  no second derivative. Backward exchanges where it comes to a function, in all ranks
//         alike.
// Errors: as tensor_exchange.h.
// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//         arXiv:2205.05198, section 4.2.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "torch/types.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns the ranks' parts put together. Backward returns this rank's part of the sum of their
// gradients.
torch::Tensor GatherParts(const torch::Tensor& part, const RankLine& line, const std::string& site);
// Returns this rank's part of the sum of what ranks have. Backward puts the parts' gradients
// together.
torch::Tensor ReduceScatterParts(const torch::Tensor& whole, const RankLine& line,
                                 const std::string& site);

// A rank's part that was put together with others for several linear layers. Their backward puts
// it together once more, once for all of them, so that graphs keep the part alone.
class GatheredParts {
 public:
  GatheredParts(const torch::Tensor& part, const RankLine& line, std::string site);
  // Each layer that will read it in backward says so in forward, and asks for it once. Behind the
  // last one nothing is kept.
  void AddReader() { ++num_readers_; }
  torch::Tensor ForBackward();

 private:
  torch::Tensor part_;  // Without a graph.
  const RankLine line_;
  const std::string site_;
  torch::Tensor whole_;  // From the first reader to the last.
  int64_t num_readers_ = 0;
};

// The same as GatherParts, for layers that get `parts`, which lives as long as the graph.
torch::Tensor GatherParts(const torch::Tensor& part, const RankLine& line, const std::string& site,
                          std::weak_ptr<GatheredParts>& parts);
// Returns x W^T + b for x that was put together of `parts`, which may be null; weight [out, in],
// and bias [out] or undefined.
torch::Tensor LinearOfParts(const torch::Tensor& x, const std::shared_ptr<GatheredParts>& parts,
                            const torch::Tensor& weight, const torch::Tensor& bias);

}  // namespace gemini::trainer
