// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/opt.h"

#include <cmath>
#include <string>

#include "ATen/ops/arange.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/linear.h"

namespace gemini::trainer {
namespace {

// Positions start at 2 in the table: fairseq, where the weights come from, kept 0 and 1 for
// padding.
constexpr int64_t kPositionOffset = 2;
constexpr double kLayerNormEpsilon = 1e-5;  // Torch's default; no key of config.json changes it.

class OptBlock : public Block {
 public:
  OptBlock(const OptConfig& config, const torch::TensorOptions& options)
      : config_(config),
        scale_(
            std::pow(static_cast<double>(config.hidden_size / config.num_attention_heads), -0.5)) {
    const int64_t size = config.hidden_size;
    const auto linear = [&](int64_t in, int64_t out) {
      return std::make_shared<Linear>(in, out, config.enable_bias, options);
    };
    const auto norm = [&](const char* name) {
      return register_module(
          name, std::make_shared<LayerNorm>(size, kLayerNormEpsilon,
                                            config.layer_norm_elementwise_affine, options));
    };
    // Registered in the order of first use, which depends on where the norms are.
    if (config.do_layer_norm_before) attention_norm_ = norm("self_attn_layer_norm");
    const auto attention = register_module("self_attn", std::make_shared<ModuleGroup>());
    query_ = attention->Add("q_proj", linear(size, size));
    key_ = attention->Add("k_proj", linear(size, size));
    value_ = attention->Add("v_proj", linear(size, size));
    attention_out_ = attention->Add("out_proj", linear(size, size));
    if (!config.do_layer_norm_before) attention_norm_ = norm("self_attn_layer_norm");
    if (config.do_layer_norm_before) feed_norm_ = norm("final_layer_norm");
    feed_in_ = register_module("fc1", linear(size, config.ffn_dim));
    feed_out_ = register_module("fc2", linear(config.ffn_dim, size));
    if (!config.do_layer_norm_before) feed_norm_ = norm("final_layer_norm");
  }

  torch::Tensor Forward(const torch::Tensor& hidden) override {
    const bool before = config_.do_layer_norm_before;
    const torch::Tensor attention_in = before ? attention_norm_->Forward(hidden) : hidden;
    // The query is scaled and not the scores, as in transformers: another order, other bits.
    const torch::Tensor query = query_->Forward(attention_in) * scale_;
    const torch::Tensor key = key_->Forward(attention_in);
    const torch::Tensor value = value_->Forward(attention_in);
    torch::Tensor attended = attention_out_->Forward(
        CausalAttention(query, key, value, config_.num_attention_heads, /*scale=*/1.0,
                        config_.attention_dropout, is_training()));
    attended = at::dropout(attended, config_.dropout, is_training());
    torch::Tensor middle = hidden + attended;
    if (!before) middle = attention_norm_->Forward(middle);

    const torch::Tensor rows = middle.reshape({-1, middle.size(-1)});
    torch::Tensor fed = feed_in_->Forward(before ? feed_norm_->Forward(rows) : rows);
    fed = feed_out_->Forward(Activate(config_.activation, fed));
    fed = at::dropout(fed, config_.dropout, is_training());
    const torch::Tensor out = (rows + fed).view(hidden.sizes());
    return before ? out : feed_norm_->Forward(out);
  }

 private:
  const OptConfig config_;
  const double scale_;
  std::shared_ptr<LayerNorm> attention_norm_;
  std::shared_ptr<Linear> query_;
  std::shared_ptr<Linear> key_;
  std::shared_ptr<Linear> value_;
  std::shared_ptr<Linear> attention_out_;
  std::shared_ptr<LayerNorm> feed_norm_;
  std::shared_ptr<Linear> feed_in_;
  std::shared_ptr<Linear> feed_out_;
};

}  // namespace

Opt::Opt(const OptConfig& config, const torch::TensorOptions& options) : config_(config) {
  const int64_t size = config.hidden_size;
  const int64_t embedding_size = config.word_embed_proj_dim;
  const auto model = register_module("model", std::make_shared<ModuleGroup>());
  const auto decoder = model->Add("decoder", std::make_shared<ModuleGroup>());
  token_embedding_ = decoder->Add(
      "embed_tokens",
      std::make_shared<Embedding>(config.vocab_size, embedding_size, config.pad_token_id, options));
  position_embedding_ = decoder->Add(
      "embed_positions", std::make_shared<Embedding>(
                             config.max_position_embeddings + kPositionOffset, size, -1, options));
  if (config.has_projections()) {
    project_in_ = decoder->Add(
        "project_in", std::make_shared<Linear>(embedding_size, size, /*bias=*/false, options));
  }
  const auto layers = decoder->Add("layers", std::make_shared<ModuleGroup>());
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    blocks_.push_back(
        layers->Add(std::to_string(layer), std::make_shared<OptBlock>(config, options)));
  }
  if (config.has_final_layer_norm()) {
    final_norm_ =
        decoder->Add("final_layer_norm",
                     std::make_shared<LayerNorm>(size, kLayerNormEpsilon,
                                                 config.layer_norm_elementwise_affine, options));
  }
  if (config.has_projections()) {
    project_out_ = decoder->Add(
        "project_out", std::make_shared<Linear>(size, embedding_size, /*bias=*/false, options));
  }
  if (!config.tie_word_embeddings) {
    head_ = register_module("lm_head", std::make_shared<Linear>(embedding_size, config.vocab_size,
                                                                /*bias=*/false, options));
  }
}

torch::Tensor Opt::Embed(const torch::Tensor& tokens) {
  // One row of positions for each sequence, and not one for all: the gradient of the table is then
  // summed in the order of transformers.
  const torch::Tensor positions = torch::arange(kPositionOffset, tokens.size(1) + kPositionOffset,
                                                torch::dtype(torch::kInt64).device(tokens.device()))
                                      .unsqueeze(0)
                                      .expand({tokens.size(0), -1});
  torch::Tensor embedded = token_embedding_->Forward(tokens);
  const torch::Tensor placed = position_embedding_->Forward(positions);
  if (project_in_) embedded = project_in_->Forward(embedded);
  return embedded + placed;
}

torch::Tensor Opt::Head(const torch::Tensor& hidden) {
  torch::Tensor out = hidden;
  if (final_norm_) out = final_norm_->Forward(out);
  if (project_out_) out = project_out_->Forward(out);
  return head_ ? head_->Forward(out) : at::linear(out, token_embedding_->weight());
}

}  // namespace gemini::trainer
