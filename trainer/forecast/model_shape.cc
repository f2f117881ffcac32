// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/model_shape.h"

namespace gemini::trainer {

absl::StatusOr<policies::TransformerShape> ShapeOf(const ModelSpec& spec) {
  using policies::TransformerFamily;
  if (!spec.positions.has_value()) {
    return absl::UnimplementedError(
        "steps of GPT-2 and OPT alone can be predicted so far; a job of this model is placed by "
        "what its first step records");
  }
  const AttentionSpec& attention = spec.attention;
  return policies::TransformerShape{
      .family = attention.one_matrix ? TransformerFamily::kGpt2 : TransformerFamily::kOpt,
      .num_layers = spec.num_blocks,
      .hidden = spec.width,
      .num_heads = attention.num_heads,
      .inner = spec.feed_forward.width,
      .vocabulary = spec.vocab_size,
      .num_positions = spec.positions->rows,
      .embedding_size = spec.embedding_width,
      .tied_head = spec.tied_head,
      .norm_before = spec.order == BlockOrder::kNormsBefore,
      .final_norm = spec.final_norm,
      .bias = attention.bias,
      .affine_norm = spec.norm.affine,
      .activation_keeps_input = spec.feed_forward.activation != Activation::kRelu,
      .dropout = spec.residual_dropout > 0,
      .embedding_dropout = spec.embedding_dropout > 0,
      .attention_dropout = attention.dropout > 0};
}

}  // namespace gemini::trainer
