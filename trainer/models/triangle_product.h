// SPDX-License-Identifier: Apache-2.0
// Computes the triangle multiplication: a pair of residues is updated by the two other edges of
// each triangle that it is an edge of.
// Memory: some tensors of [batch, residues, residues, triangle width].
// Bits:   the same for the same input and parameters.
// Thread: one at a time.
// Source: Jumper et al., Nature 596, 2021, supplementary methods: Algorithm 11 (outgoing edges) and
//         12 (incoming edges).
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

enum class TriangleEdges : uint8_t {
  kOutgoing,  // The pair (i, j) is updated by the sum over k of (i, k) times (j, k).
  kIncoming,  // It is updated by that of (k, i) times (k, j).
};

class TriangleProduct {
 public:
  // Registers the layers at `names` below `root`, in the order of first use. The norm in the middle
  // takes all of spec.triangle_width, so no linear layer is asked for in a role that may be split.
  TriangleProduct(torch::nn::Module& root, const TriangleProductNames& names, TriangleEdges edges,
                  const PairTrunkSpec& spec, const NormSpec& norm, LayerSet& layers);

  // Returns what is added to pairs [batch, residues, residues, pair width], contiguous and of the
  // parameters' dtype, in their shape and dtype. Torch's exceptions pass through.
  torch::Tensor Forward(const torch::Tensor& pairs) const;

 private:
  const TriangleEdges edges_;
  std::shared_ptr<Layer> norm_in_;
  std::shared_ptr<Layer> left_gate_;
  std::shared_ptr<Layer> left_;
  std::shared_ptr<Layer> right_gate_;
  std::shared_ptr<Layer> right_;
  std::shared_ptr<Layer> norm_out_;
  std::shared_ptr<Layer> out_;
  std::shared_ptr<Layer> gate_;
};

}  // namespace gemini::trainer
