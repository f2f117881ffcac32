// SPDX-License-Identifier: Apache-2.0
// GPT-2 with a language-model head, as GPT2LMHeadModel of transformers.
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
#pragma once
#include <memory>
#include <vector>

#include "trainer/models/causal_lm.h"
#include "trainer/models/layers.h"
#include "trainer/models/recompute.h"

namespace gemini::trainer {

class Gpt2 : public CausalLm {
 public:
  Gpt2(const Gpt2Config& config, const torch::TensorOptions& options);
  torch::Tensor Embed(const torch::Tensor& tokens) override;
  torch::Tensor Head(const torch::Tensor& hidden) override;

 private:
  const Gpt2Config config_;
  std::shared_ptr<Embedding> token_embedding_;
  std::shared_ptr<Embedding> position_embedding_;
  std::shared_ptr<LayerNorm> final_norm_;
  std::shared_ptr<Linear> head_;  // Null when tied to the token embedding.
};

}  // namespace gemini::trainer
