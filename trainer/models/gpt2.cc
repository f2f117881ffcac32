// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/gpt2.h"

#include <cmath>
#include <string>

#include "ATen/ops/arange.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/linear.h"

namespace gemini::trainer {
namespace {

class Gpt2Block : public Block {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t layer, const torch::TensorOptions& options)
      : config_(config), scale_(AttentionScale(config, layer)) {
    const auto norm = [&] {
      return std::make_shared<LayerNorm>(config.n_embd, config.layer_norm_epsilon,
                                         /*affine=*/true, options);
    };
    norm_1_ = register_module("ln_1", norm());
    const auto attention = register_module("attn", std::make_shared<ModuleGroup>());
    query_key_value_ = attention->Add(
        "c_attn", std::make_shared<Conv1d>(config.n_embd, 3 * config.n_embd, options));
    attention_out_ =
        attention->Add("c_proj", std::make_shared<Conv1d>(config.n_embd, config.n_embd, options));
    norm_2_ = register_module("ln_2", norm());
    const auto mlp = register_module("mlp", std::make_shared<ModuleGroup>());
    mlp_in_ = mlp->Add("c_fc", std::make_shared<Conv1d>(config.n_embd, config.n_inner, options));
    mlp_out_ = mlp->Add("c_proj", std::make_shared<Conv1d>(config.n_inner, config.n_embd, options));
  }

  torch::Tensor Forward(const torch::Tensor& hidden) override {
    const std::vector<torch::Tensor> parts =
        query_key_value_->Forward(norm_1_->Forward(hidden)).split(config_.n_embd, /*dim=*/2);
    torch::Tensor attended = attention_out_->Forward(CausalAttention(
        parts[0], parts[1], parts[2], config_.n_head, scale_, config_.attn_pdrop, is_training()));
    attended = at::dropout(attended, config_.resid_pdrop, is_training());
    const torch::Tensor middle = attended + hidden;
    torch::Tensor fed = mlp_in_->Forward(norm_2_->Forward(middle));
    fed = mlp_out_->Forward(Activate(config_.activation, fed));
    fed = at::dropout(fed, config_.resid_pdrop, is_training());
    return middle + fed;
  }

 private:
  static double AttentionScale(const Gpt2Config& config, int64_t layer) {
    double scale = 1.0;
    if (config.scale_attn_weights) {
      scale = std::pow(static_cast<double>(config.n_embd / config.n_head), -0.5);
    }
    if (config.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
    return scale;
  }

  const Gpt2Config config_;
  const double scale_;
  std::shared_ptr<LayerNorm> norm_1_;
  std::shared_ptr<Conv1d> query_key_value_;
  std::shared_ptr<Conv1d> attention_out_;
  std::shared_ptr<LayerNorm> norm_2_;
  std::shared_ptr<Conv1d> mlp_in_;
  std::shared_ptr<Conv1d> mlp_out_;
};

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, const torch::TensorOptions& options) : config_(config) {
  const auto transformer = register_module("transformer", std::make_shared<ModuleGroup>());
  token_embedding_ = transformer->Add(
      "wte", std::make_shared<Embedding>(config.vocab_size, config.n_embd, -1, options));
  position_embedding_ = transformer->Add(
      "wpe", std::make_shared<Embedding>(config.n_positions, config.n_embd, -1, options));
  const auto layers = transformer->Add("h", std::make_shared<ModuleGroup>());
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    blocks_.push_back(
        layers->Add(std::to_string(layer), std::make_shared<Gpt2Block>(config, layer, options)));
  }
  final_norm_ =
      transformer->Add("ln_f", std::make_shared<LayerNorm>(config.n_embd, config.layer_norm_epsilon,
                                                           /*affine=*/true, options));
  if (!config.tie_word_embeddings) {
    head_ = register_module("lm_head", std::make_shared<Linear>(config.n_embd, config.vocab_size,
                                                                /*bias=*/false, options));
  }
}

torch::Tensor Gpt2::Embed(const torch::Tensor& tokens) {
  const torch::Tensor positions =
      torch::arange(tokens.size(1), torch::dtype(torch::kInt64).device(tokens.device()))
          .unsqueeze(0);
  // One after the other: the order of first use is the order of the parameters.
  const torch::Tensor embedded = token_embedding_->Forward(tokens);
  const torch::Tensor hidden = embedded + position_embedding_->Forward(positions);
  return at::dropout(hidden, config_.embd_pdrop, is_training());
}

torch::Tensor Gpt2::Head(const torch::Tensor& hidden) {
  const torch::Tensor normed = final_norm_->Forward(hidden);
  return head_ ? head_->Forward(normed) : at::linear(normed, token_embedding_->weight());
}

}  // namespace gemini::trainer
