// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/pair_trunk.h"

#include <cstdint>
#include <utility>

#include "c10/util/Exception.h"

namespace gemini::trainer {
namespace {

AxialAttention::Shape MsaShape(AttentionAxis axis, const PairTrunkSpec& spec) {
  return {.axis = axis,
          .heads = spec.msa_heads,
          .width = spec.msa_width,
          .bias_width = spec.pair_width};
}

AxialAttention::Shape TriangleShape(AttentionAxis axis, const PairTrunkSpec& spec) {
  return {.axis = axis,
          .heads = spec.triangle_heads,
          .width = spec.pair_width,
          .bias_width = spec.pair_width};
}

}  // namespace

PairBlock::PairBlock(const PairTrunkSpec& spec, LayerSet& layers)
    : PairBlock(spec, NormSpec{.epsilon = spec.norm_epsilon}, layers) {}

PairBlock::PairBlock(const PairTrunkSpec& spec, const NormSpec& norm, LayerSet& layers)
    : msa_width_(spec.msa_width),
      pair_width_(spec.pair_width),
      msa_rows_(*this, spec.block.msa_rows, MsaShape(AttentionAxis::kRows, spec), norm, layers),
      msa_columns_(*this, spec.block.msa_columns, MsaShape(AttentionAxis::kColumns, spec), norm,
                   layers),
      msa_transition_(*this, spec.block.msa_transition, spec.msa_width, spec.transition_factor,
                      norm, layers),
      outer_product_mean_(*this, spec.block.outer_product_mean, spec, norm, layers),
      outgoing_(*this, spec.block.outgoing, TriangleEdges::kOutgoing, spec, norm, layers),
      incoming_(*this, spec.block.incoming, TriangleEdges::kIncoming, spec, norm, layers),
      starting_node_(*this, spec.block.starting_node, TriangleShape(AttentionAxis::kRows, spec),
                     norm, layers),
      ending_node_(*this, spec.block.ending_node, TriangleShape(AttentionAxis::kColumns, spec),
                   norm, layers),
      pair_transition_(*this, spec.block.pair_transition, spec.pair_width, spec.transition_factor,
                       norm, layers) {}

Stream PairBlock::Forward(const Stream& stream, const BatchContext& /*context*/) {
  MsaAndPair out = Forward({.msa = stream.hidden, .pair = stream.pair});
  return {.hidden = std::move(out.msa), .pair = std::move(out.pair)};
}

MsaAndPair PairBlock::Forward(MsaAndPair in) const {
  torch::Tensor msa = std::move(in.msa);
  torch::Tensor pair = std::move(in.pair);
  // Else a size of 1 would be repeated where another one is added to it.
  TORCH_CHECK(msa.dim() == 4 && msa.size(3) == msa_width_, "an alignment of sizes ", msa.sizes(),
              " where [batch, sequences, residues, ", msa_width_, "] is wanted");
  const int64_t batch = msa.size(0);
  const int64_t residues = msa.size(2);
  TORCH_CHECK(pair.sizes() == at::IntArrayRef({batch, residues, residues, pair_width_}),
              "pairs of sizes ", pair.sizes(), " where [", batch, ", ", residues, ", ", residues,
              ", ", pair_width_, "] is wanted, as the alignment has it");
  msa = msa + msa_rows_.Forward(msa, pair);
  msa = msa + msa_columns_.Forward(msa);
  msa = msa + msa_transition_.Forward(msa);
  pair = pair + outer_product_mean_.Forward(msa);
  pair = pair + outgoing_.Forward(pair);
  pair = pair + incoming_.Forward(pair);
  pair = pair + starting_node_.Forward(pair);
  pair = pair + ending_node_.Forward(pair);
  pair = pair + pair_transition_.Forward(pair);
  return {.msa = std::move(msa), .pair = std::move(pair)};
}

}  // namespace gemini::trainer
