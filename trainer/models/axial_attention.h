// SPDX-License-Identifier: Apache-2.0
// Computes gated attention along one axis of a matrix of vectors: in the rows or in the columns of
// an alignment, or of the pairs of residues. A bias that is made of pairs may be added to its
// scores.
// Memory: scores and weights of [batch, rows, heads, columns, columns] elements, or with rows and
//         columns exchanged. Backward needs the weights.
// Bits:   the same for the same input and parameters.
// Thread: one at a time.
// Source: Jumper et al., Nature 596, 2021, supplementary methods: Algorithm 7 (rows of an
//         alignment, with pairs), 8 (its columns), 13 (rows of pairs: around the starting node) and
//         14 (their columns: around the ending node).
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

enum class AttentionAxis : uint8_t {
  kRows,     // Elements of one row attend to each other.
  kColumns,  // Elements of one column do.
};

class AxialAttention {
 public:
  struct Shape {
    AttentionAxis axis = AttentionAxis::kRows;
    AxialHeads heads = {};
    int64_t width = 0;       // Elements of a vector that attends.
    int64_t bias_width = 0;  // Elements of a vector that the bias is made of, if there is a bias.
  };

  // Registers the layers at `names` below `root`, in the order of first use.
  AxialAttention(torch::nn::Module& root, const AxialAttentionNames& names, const Shape& shape,
                 const NormSpec& norm, LayerSet& layers);

  // Returns what is added to x [batch, rows, columns, width], contiguous and of the parameters'
  // dtype, in its shape and dtype. The length of the axis is n; `pairs` [batch, n, n, bias width]
  // is what the bias is made of if names.bias_norm is not empty, and is not read otherwise. The
  // score of query i and key j is biased by the pair (i, j) in rows, and by the pair (j, i) in
  // columns. Torch's exceptions pass through.
  torch::Tensor Forward(const torch::Tensor& x, const torch::Tensor& pairs = {}) const;

 private:
  // Returns the biases, [batch, 1, heads, queries, keys], or an undefined tensor. `in`: x, normed.
  torch::Tensor Bias(const torch::Tensor& in, const torch::Tensor& pairs) const;
  // Returns what `layer` makes of `in`, as [batch, lines, heads, elements of a line, head size].
  torch::Tensor Heads(const Layer& layer, const torch::Tensor& in) const;

  const AttentionAxis axis_;
  const int64_t head_size_;
  const double scale_;
  std::shared_ptr<Layer> norm_;
  std::shared_ptr<Layer> input_;      // Null where there is nothing to do, as bias_input_.
  std::shared_ptr<Layer> bias_norm_;  // Null if the bias is made of x, or is not there.
  std::shared_ptr<Layer> bias_input_;
  std::shared_ptr<Layer> bias_;  // Null without a bias.
  std::shared_ptr<Layer> query_;
  std::shared_ptr<Layer> key_;
  std::shared_ptr<Layer> value_;
  std::shared_ptr<Layer> gate_;
  std::shared_ptr<Layer> out_;
};

}  // namespace gemini::trainer
