// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/model_shape.h"

#include <variant>

namespace gemini::trainer {
namespace {

using policies::TransformerFamily;
using policies::TransformerShape;

// Rows of OPT's position table before the first position (trainer/models/opt.cc).
constexpr int64_t kOptPositionOffset = 2;

TransformerShape ShapeOfModel(const Gpt2Config& config) {
  return {.family = TransformerFamily::kGpt2,
          .num_layers = config.n_layer,
          .hidden = config.n_embd,
          .num_heads = config.n_head,
          .inner = config.n_inner,
          .vocabulary = config.vocab_size,
          .num_positions = config.n_positions,
          .embedding_size = config.n_embd,
          .tied_head = config.tie_word_embeddings,
          .activation_keeps_input = config.activation != Activation::kRelu,
          .dropout = config.resid_pdrop > 0,
          .embedding_dropout = config.embd_pdrop > 0,
          .attention_dropout = config.attn_pdrop > 0};
}

TransformerShape ShapeOfModel(const OptConfig& config) {
  return {.family = TransformerFamily::kOpt,
          .num_layers = config.num_hidden_layers,
          .hidden = config.hidden_size,
          .num_heads = config.num_attention_heads,
          .inner = config.ffn_dim,
          .vocabulary = config.vocab_size,
          .num_positions = config.max_position_embeddings + kOptPositionOffset,
          .embedding_size = config.word_embed_proj_dim,
          .tied_head = config.tie_word_embeddings,
          .norm_before = config.do_layer_norm_before,
          .final_norm = config.has_final_layer_norm(),
          .bias = config.enable_bias,
          .affine_norm = config.layer_norm_elementwise_affine,
          .activation_keeps_input = config.activation != Activation::kRelu,
          .dropout = config.dropout > 0,
          .embedding_dropout = false,
          .attention_dropout = config.attention_dropout > 0};
}

}  // namespace

TransformerShape ShapeOf(const HfConfig& config) {
  return std::visit([](const auto& model) { return ShapeOfModel(model); }, config.model);
}

}  // namespace gemini::trainer
