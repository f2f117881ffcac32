// SPDX-License-Identifier: Apache-2.0
// Computes the way from an alignment to the pairs of residues: for each pair the outer product of
// two vectors, one of each residue, as the mean over the sequences.
// Memory: two tensors of [batch, residues, residues, outer width^2] at a time, of which backward
//         needs one.
// Bits:   the same for the same input and parameters.
// Thread: one at a time.
// Source: Jumper et al., Nature 596, 2021, supplementary methods, Algorithm 10. AlphaFold's code
//         differs from it: it divides by the number of sequences plus 0.001, and behind the last
//         linear layer, so that its bias is divided, too. This is as the paper has it.
#pragma once
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

class OuterProductMean {
 public:
  // Registers the layers at `names` below `root`, in the order of first use. Each of them is whole:
  // none is asked for in a role that may be split.
  OuterProductMean(torch::nn::Module& root, const OuterProductMeanNames& names,
                   const PairTrunkSpec& spec, const NormSpec& norm, LayerSet& layers);

  // Returns what is added to the pairs, [batch, residues, residues, pair width], for an alignment
  // [batch, sequences, residues, msa width], contiguous and of the parameters' dtype, in that
  // dtype. Torch's exceptions pass through.
  torch::Tensor Forward(const torch::Tensor& msa) const;

 private:
  std::shared_ptr<Layer> norm_;
  std::shared_ptr<Layer> left_;
  std::shared_ptr<Layer> right_;
  std::shared_ptr<Layer> out_;
};

}  // namespace gemini::trainer
