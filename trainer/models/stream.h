// SPDX-License-Identifier: Apache-2.0
// Holds what flows through the blocks of a model for one batch: each block takes a stream and
// returns the next one.
// Thread: any.
#pragma once
#include <cstddef>
#include <vector>

#include "torch/types.h"

namespace gemini::trainer {

struct Stream {
  // [batch, sequence, width]. In a pair trunk it is the alignment: [batch, sequences, residues,
  // width].
  torch::Tensor hidden;
  // [batch, residues, residues, pair width]. Undefined in models that are no pair trunks.
  torch::Tensor pair = {};
  // Sums over the blocks that the batch went through: fp32 [2, experts]. The first row counts how
  // many tokens chose each expert, and gets no gradient; the second sums the router's probabilities
  // of the tokens. Undefined before the first block with experts, and in models whose loss includes
  // no router's.
  torch::Tensor router_sums = {};
};

// Returns the tensors that are there, in the order in which the stream has them.
inline std::vector<torch::Tensor> TensorsOf(const Stream& stream) {
  std::vector<torch::Tensor> tensors;
  for (const torch::Tensor* tensor : {&stream.hidden, &stream.pair, &stream.router_sums}) {
    if (tensor->defined()) tensors.push_back(*tensor);
  }
  return tensors;
}

// Returns the stream of which TensorsOf returns these: one with a hidden tensor, with a pair if
// `has_pair`, and with router sums if one more is left.
inline Stream StreamOf(const std::vector<torch::Tensor>& tensors, bool has_pair) {
  const size_t sums = has_pair ? 2 : 1;
  return {.hidden = tensors[0],
          .pair = has_pair ? tensors[1] : torch::Tensor(),
          .router_sums = tensors.size() > sums ? tensors[sums] : torch::Tensor()};
}

// Returns what `change` makes of each tensor that is there.
template <typename Change>
Stream Changed(const Stream& stream, const Change& change) {
  const auto of = [&change](const torch::Tensor& tensor) {
    return tensor.defined() ? change(tensor) : torch::Tensor();
  };
  return {
      .hidden = of(stream.hidden), .pair = of(stream.pair), .router_sums = of(stream.router_sums)};
}

// Returns the same values without their graph.
inline Stream Detached(const Stream& stream) {
  return Changed(stream, [](const torch::Tensor& tensor) { return tensor.detach(); });
}

// Returns the same values as inputs of a graph of their own.
inline Stream LeavesOf(const Stream& stream) {
  return Changed(
      stream, [](const torch::Tensor& tensor) { return tensor.detach().set_requires_grad(true); });
}

// Returns the gradients of such inputs after backward.
inline Stream GradientsOf(const Stream& leaves) {
  return Changed(leaves, [](const torch::Tensor& leaf) { return leaf.grad(); });
}

}  // namespace gemini::trainer
