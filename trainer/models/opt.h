// SPDX-License-Identifier: Apache-2.0
// OPT with a language-model head, as OPTForCausalLM of transformers: layer norms before each part
// (most sizes) or after it (350m, which also projects into and out of its embeddings).
// Source: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv:2205.01068.
#pragma once
#include <memory>
#include <vector>

#include "trainer/models/causal_lm.h"
#include "trainer/models/layers.h"
#include "trainer/models/recompute.h"

namespace gemini::trainer {

class Opt : public CausalLm {
 public:
  Opt(const OptConfig& config, const torch::TensorOptions& options);
  torch::Tensor Embed(const torch::Tensor& tokens) override;
  torch::Tensor Head(const torch::Tensor& hidden) override;

 private:
  const OptConfig config_;
  std::shared_ptr<Embedding> token_embedding_;
  std::shared_ptr<Embedding> position_embedding_;
  std::shared_ptr<Linear> project_in_;     // Null without projections.
  std::shared_ptr<LayerNorm> final_norm_;  // Null without one.
  std::shared_ptr<Linear> project_out_;    // Null without projections.
  std::shared_ptr<Linear> head_;           // Null when tied to the token embedding.
};

}  // namespace gemini::trainer
