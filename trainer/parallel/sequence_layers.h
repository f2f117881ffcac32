// SPDX-License-Identifier: Apache-2.0
// Makes layers for ranks that share sequences: each computes with a part of every sequence's
// tokens, and has all parameters that it would have without. Attention alone needs other ranks'
// tokens.
// Ulysses: it exchanges queries, keys and values, so that each rank has some heads of all tokens,
//          and back: 4 T h / P (P - 1) / P elements in forward and as many in backward.
// Ring:    keys and values go from rank to rank (ring_attention.h). In a zigzag each rank has an
//          early and a late slice of the sequence, so that all have as much to compute.
// Sums:    gradients are those of this rank's tokens. Whoever calls backward adds them over the
//          ranks, as over those that have other sequences. Losses are those of all tokens.
// Source:  Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509; ring_attention.h.
#pragma once
#include <cstdint>
#include <memory>

#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/tensor_exchange.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

class SequenceLayers : public TensorLayers {
 public:
  // `sequence` is of Ulysses or a ring, among the ranks of `line`.
  SequenceLayers(const torch::TensorOptions& options, const RankLine& line,
                 const SequenceLayout& sequence);
  // With layers that are divided themselves, of which this rank has that part of the heads.
  SequenceLayers(std::unique_ptr<TensorLayers> divided, const EqualPart& heads,
                 const RankLine& line, const SequenceLayout& sequence);

  ParameterBoxes BoxesOf(const torch::Tensor& parameter) const override;
  HiddenPart hidden_part() const override;
  std::shared_ptr<VocabularyTable> TokenEmbedding(int64_t vocabulary, int64_t width,
                                                  int64_t padding_token) override;
  std::shared_ptr<Layer> PositionEmbedding(int64_t rows, int64_t width) override;
  std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) override {
    return inner_->Norm(norm, width);
  }
  std::shared_ptr<Layer> HeadNorm(const AttentionSpec& attention, int64_t heads) override {
    return inner_->HeadNorm(attention, heads);
  }
  std::shared_ptr<Layer> SharedInput() override { return inner_->SharedInput(); }
  std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) override {
    return inner_->Linear(shape, role);
  }
  std::shared_ptr<Layer> RouterOutput() override { return inner_->RouterOutput(); }
  std::shared_ptr<Layer> ExpertWeights() override { return inner_->ExpertWeights(); }
  std::shared_ptr<Layer> ExpertsOutput() override { return inner_->ExpertsOutput(); }
  std::shared_ptr<HeadAttention> Attention(const AttentionSpec& attention) override;
  std::shared_ptr<HeadAndLoss> Head(const HeadShape& shape,
                                    std::shared_ptr<VocabularyTable> tied) override;

 private:
  const std::unique_ptr<LayerSet> inner_;
  const TensorLayers* const divided_;  // The same, or null: parameters are whole.
  const EqualPart heads_;
  const RankLine line_;
  const SequenceLayout sequence_;
};

}  // namespace gemini::trainer
