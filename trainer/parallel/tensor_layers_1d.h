// SPDX-License-Identifier: Apache-2.0
// Makes layers whose matrices the ranks of a line share, as Megatron-LM does. Each rank has the
// columns of query, key, value and of what leads into a feed-forward part, for some of the heads
// and of the elements between, and the rows of what leads out; it has some rows of the vocabulary's
// table, and of its head's bias. Everything else it has whole: norms, the biases of what leads out,
// positions, routers, projections, and what stands behind the blocks, a transform before the
// vocabulary or a classifier. In the blocks of a pair trunk the ranks divide attention and
// transitions. Each of them computes the outer product mean and the triangle multiplications whole,
// because these norm what all heads have together.
// Sends:  a block adds 2 tensors over the line as they come out, and in backward 2 of what went in.
//         With experts it also adds the gradients of their weights, and 2 tensors more where an
//         expert is shared. The embedding adds 1. The head adds 1 in backward, and gathers two
//         numbers a token. A pair trunk's block adds 6 as they come out, and 7 in backward.
// Parts:  with parts of sequences between layers (Megatron-LM's sequence parallelism) the same, but
//         what comes out is added up in parts, and what goes in is put together, in backward once
//         more: 10 T h (t - 1) / t elements a block in place of 8, or 7 in place of 6 where
//         attention and feed-forward part read one norm. Norms, dropout and what is added to run
//         on parts; the gradients of what is whole are added over the line. Routers' logits are put
//         together, and all ranks route all rows. A classifier reads hidden states that were put
//         together, in all ranks alike.
// Bits:   what several ranks have alike, hidden states (without parts) and gradients, has the same
//         bits in each. Sums are of other numbers than on one rank, so results differ from its by
//         rounding.
// Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; Korthikanti et al.,
//         arXiv:2205.05198, section 4.2.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/models/plain_layers.h"
#include "trainer/parallel/layers_of_parts.h"
#include "trainer/parallel/tensor_exchange.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

// INVALID_ARGUMENT: the model cannot be divided among so many ranks; the message names what does
// not divide, and numbers of ranks that do.
absl::Status CheckTensor1d(const ModelSpec& spec, int64_t num_ranks);

// How many neighbours have each key and value head alike, of ranks that passed CheckTensor1d.
int64_t CopiesOfKeyHeads(const ModelSpec& spec, int64_t num_ranks);

class TensorLayers1d : public TensorLayers {
 public:
  // `options` are those of the parameters, as PlainLayers has them. `copies`: this rank's and its
  // neighbours that have the same key and value head, where CopiesOfKeyHeads is above 1.
  // `parts_of_sequences`: each rank has the tokens of its part between layers; the ranks divide
  // their number.
  TensorLayers1d(const torch::TensorOptions& options, const RankLine& line, const RankLine& copies,
                 bool parts_of_sequences);

  HiddenPart hidden_part() const override { return {.tokens = has_parts_ ? part() : EqualPart()}; }
  std::shared_ptr<VocabularyTable> TokenEmbedding(int64_t vocabulary, int64_t width,
                                                  int64_t padding_token) override;
  std::shared_ptr<Layer> PositionEmbedding(int64_t rows, int64_t width) override;
  // All ranks have these whole, and a line whose hidden states are parts has none of them.
  std::shared_ptr<Layer> Patches(const ImageSpec& image, int64_t width) override;
  std::shared_ptr<Layer> ImageTokens(const ImageSpec& image, int64_t width) override;
  std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) override;
  std::shared_ptr<Layer> HeadNorm(const AttentionSpec& attention, int64_t heads) override;
  std::shared_ptr<Layer> SharedInput() override;
  std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) override;
  std::shared_ptr<Layer> RouterOutput() override;
  std::shared_ptr<Layer> ExpertWeights() override;
  std::shared_ptr<Layer> ExpertsOutput() override;
  std::shared_ptr<HeadAttention> Attention(const AttentionSpec& attention) override;
  std::shared_ptr<Layer> WholeSequences() override;
  std::shared_ptr<HeadAndLoss> Head(const HeadShape& shape,
                                    std::shared_ptr<VocabularyTable> tied) override;

 private:
  EqualPart part() const { return {line_.place(), line_.size()}; }
  // Notes that all ranks have the layer whole, and returns it.
  std::shared_ptr<Layer> Whole(std::shared_ptr<Layer> layer);
  // The same of a layer between others, which reads a part of each sequence where there are parts.
  std::shared_ptr<Layer> WholeOfParts(std::shared_ptr<Layer> layer);
  // Returns `layer`, with gradients that are added over the ranks of `line`: each has a part of
  // what they come of.
  std::shared_ptr<Layer> AddGradients(std::shared_ptr<Layer> layer, const RankLine& line);
  std::shared_ptr<Layer> Columns(const LinearShape& shape, bool is_expert);
  std::shared_ptr<Layer> Rows(const LinearShape& shape, const char* site);

  const torch::TensorOptions options_;
  const RankLine line_;
  const RankLine copies_;
  const bool has_parts_;
  const policies::TensorGrid grid_;
  std::shared_ptr<InputOfParts>
      input_;  // Of the columns that are made next, where there are parts.
  PlainLayers plain_;
};

}  // namespace gemini::trainer
