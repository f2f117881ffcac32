// SPDX-License-Identifier: Apache-2.0
// Computes a block of a trunk that refines an alignment and what is known about each pair of its
// residues, each by the other.
// Order:  as in Algorithm 6: attention in rows, in columns and a transition of the alignment; the
//         outer product mean; and of the pairs both triangle multiplications, both triangle
//         attentions and a transition. Each part is added to what it reads.
// Limits: without dropout and without masks: all residues of all sequences of a batch are there.
// Bits:   the same for the same input and parameters. No operator reads a tensor's values.
// Memory: of the parts that it runs, most in axial_attention.h and outer_product_mean.h.
// Thread: one at a time.
// Source: Jumper et al., Nature 596, 2021, supplementary methods 1.6, Algorithm 6.
#pragma once
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/axial_attention.h"
#include "trainer/models/outer_product_mean.h"
#include "trainer/models/recompute.h"
#include "trainer/models/stream.h"
#include "trainer/models/transition.h"
#include "trainer/models/triangle_product.h"

namespace gemini::trainer {

// Both are of the parameters' dtype.
struct MsaAndPair {
  torch::Tensor msa;   // [batch, sequences, residues, msa width].
  torch::Tensor pair;  // [batch, residues, residues, pair width].
};

class PairBlock : public Block {
 public:
  // Asks `layers` for the layers, at spec.block's names, and does not keep it. Parameters are in
  // the order of first use, and there are no buffers. Throws c10::Error.
  PairBlock(const PairTrunkSpec& spec, LayerSet& layers);

  // Returns both tensors in their shapes and dtypes; those given are not changed. c10::Error: their
  // shapes do not fit each other, or the spec.
  MsaAndPair Forward(MsaAndPair in) const;
  // The same of a stream, whose hidden tensor is the alignment.
  Stream Forward(const Stream& stream, const BatchContext& context) override;

 private:
  PairBlock(const PairTrunkSpec& spec, const NormSpec& norm, LayerSet& layers);

  const int64_t msa_width_;
  const int64_t pair_width_;
  // In the order of Forward, in which they register their layers.
  const AxialAttention msa_rows_;
  const AxialAttention msa_columns_;
  const Transition msa_transition_;
  const OuterProductMean outer_product_mean_;
  const TriangleProduct outgoing_;
  const TriangleProduct incoming_;
  const AxialAttention starting_node_;
  const AxialAttention ending_node_;
  const Transition pair_transition_;
};

}  // namespace gemini::trainer
