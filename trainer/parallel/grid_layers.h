// SPDX-License-Identifier: Apache-2.0
// Makes layers for the ranks of a square or a cube: hidden states are divided by sequences and by
// their width, and matrices by both of their dimensions. A GridPlan says along which axes, and what
// is exchanged (tensor_layers_2d.h, tensor_layers_3d.h).
// Keeps:  for backward a rank's parts alone. What was put together of them is put together again
//         there: once for query, key and value, and once for the gate and what it multiplies.
// Vectors: biases, norms and positions are those of a rank's part of the width. Ranks that have the
//         same ones add up their gradients in backward.
// Memory: what is put together, for one operator. The head's products, of one piece of tokens, are
//         of all rows that are put together. The gradient of these rows exists from forward to
//         backward.
// Bits:   what several ranks have alike has the same bits in each. Sums are of other numbers than
//         on one rank, so results differ from its by rounding.
// Errors: as tensor_exchange.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/types.h"
#include "trainer/models/plain_layers.h"
#include "trainer/parallel/layers_of_parts.h"
#include "trainer/parallel/tensor_exchange.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

// The lines along the axes of a grid on which a rank lies.
struct GridLines {
  RankLine i;
  RankLine j;
  RankLine k;
};

// How a matrix is divided, and what its product exchanges.
struct MatrixPlan {
  // The axes by which the matrix's input is divided, and its output: coarse parts before fine ones.
  std::vector<policies::TensorAxis> in;
  std::vector<policies::TensorAxis> out;
  PartsAlong input;   // What the layer reads is put together, [sequences, ..., width].
  RankLine matrix;    // So is the matrix, in its input's dimension.
  PartsAlong output;  // What comes out is added up in parts.
  std::vector<RankLine> same_output;  // The other ranks that have those elements of the output.
};

// Which parts a rank has of a model, and with whom it exchanges others.
struct GridPlan {
  policies::TensorGrid grid;
  // These say which part of hidden states the rank has between blocks. The ranks of `width` have
  // the rest of the same tokens.
  EqualPart sequences;
  EqualPart width_part;
  RankLine width;
  std::vector<policies::TensorAxis> width_axes;
  std::vector<RankLine> same_width;  // The other ranks that have those elements of each token.
  // Linear layers of `into` lead into attention and feed-forward parts, and those of `out_of` lead
  // out of them. Between the two the rank has some heads, or some elements of the inner width.
  MatrixPlan into;
  MatrixPlan out_of;
  EqualPart inner_sequences;
  EqualPart inner_part;
  RankLine inner;
  // A rank's part of the rows of the vocabulary's table. They are put together over `table`, and
  // then looked up for a part of the sequences. What is found is added up, in parts of these, over
  // `embedding_sum`.
  std::vector<policies::TensorAxis> vocabulary_axes;
  EqualPart rows;
  RankLine table;
  EqualPart embedded_sequences;
  RankLine embedding_sum;
  // The head reads what is put together of `head_input`, and multiplies it by the table, which is
  // put together over `head_table`. The products are added up over `head_output`, in parts of the
  // rows. So a rank has logits of a part of the sequences, and of the vocabulary. `other_rows` have
  // the others of these sequences, and `other_sequences` those of others, from the finest cut on.
  PartsAlong head_input;
  RankLine head_table;
  RankLine head_output;
  EqualPart logit_sequences;
  EqualPart logit_rows;
  std::vector<RankLine> other_rows;
  std::vector<RankLine> other_sequences;

  int64_t parts_of_table() const { return table.is_shared() ? table.size() : 1; }
};

class GridLayers : public TensorLayers {
 public:
  // `options` are those of the parameters, as PlainLayers has them. The model has passed
  // CheckTensorGrid (trainer/parallel/tensor_fit.h).
  GridLayers(const torch::TensorOptions& options, GridPlan plan);

  HiddenPart hidden_part() const override {
    return {.sequences = plan_.sequences,
            .inner_sequences = plan_.inner_sequences,
            .width = plan_.width_part};
  }
  std::shared_ptr<VocabularyTable> TokenEmbedding(int64_t vocabulary, int64_t width,
                                                  int64_t padding_token) override;
  std::shared_ptr<Layer> PositionEmbedding(int64_t rows, int64_t width) override;
  std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) override;
  std::shared_ptr<Layer> HeadNorm(const AttentionSpec& attention, int64_t heads) override;
  std::shared_ptr<Layer> SharedInput() override;
  std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) override;
  std::shared_ptr<HeadAttention> Attention(const AttentionSpec& attention) override;
  std::shared_ptr<HeadAndLoss> Head(const HeadShape& shape,
                                    std::shared_ptr<VocabularyTable> tied) override;

 private:
  ParameterBoxes TableBoxes(int64_t vocabulary, int64_t width) const;
  // `input` may be null: then the layer puts together what it reads.
  std::shared_ptr<Layer> MakeLinear(const LinearShape& shape, const MatrixPlan& plan,
                                    std::shared_ptr<InputOfParts> input, const char* site);

  const torch::TensorOptions options_;
  const GridPlan plan_;
  std::shared_ptr<InputOfParts> input_;  // Of the layers that are made next.
  PlainLayers plain_;
};

}  // namespace gemini::trainer
