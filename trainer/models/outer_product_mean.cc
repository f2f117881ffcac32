// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/outer_product_mean.h"

#include <cstdint>
#include <string>

#include "ATen/ops/matmul.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {

OuterProductMean::OuterProductMean(torch::nn::Module& root, const OuterProductMeanNames& names,
                                   const PairTrunkSpec& spec, const NormSpec& norm,
                                   LayerSet& layers) {
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, Role role) {
    return AddModule(root, name, layers.Linear({.in = in, .out = out, .bias = true}, role));
  };
  const int64_t width = spec.outer_width;
  norm_ = AddModule(root, names.norm, layers.Norm(norm, spec.msa_width));
  left_ = linear(names.left, spec.msa_width, width, Role::kProjectIn);
  right_ = linear(names.right, spec.msa_width, width, Role::kProjectIn);
  out_ = linear(names.out, width * width, spec.pair_width, Role::kProjectOut);
}

torch::Tensor OuterProductMean::Forward(const torch::Tensor& msa) const {
  const int64_t num_sequences = msa.size(1);
  const int64_t num_residues = msa.size(2);
  torch::Tensor product;
  {
    const torch::Tensor in = norm_->Forward(msa);
    // The mean is taken of the smaller factor, and not of the products.
    const torch::Tensor left = left_->Forward(in) * (1.0 / static_cast<double>(num_sequences));
    const torch::Tensor right = right_->Forward(in);
    // One matrix product: [batch, residues * width, sequences] times [batch, sequences, residues *
    // width].
    product = at::matmul(left.flatten(2).transpose(1, 2), right.flatten(2));
  }
  // From [batch, i, left, j, right] to [batch, i, j, left * right].
  product = product.unflatten(2, {num_residues, -1})
                .unflatten(1, {num_residues, -1})
                .permute({0, 1, 3, 2, 4})
                .flatten(3)
                .contiguous();
  return out_->Forward(product);
}

}  // namespace gemini::trainer
