// SPDX-License-Identifier: Apache-2.0
// Computes the head of a language model, which predicts each token from those before it or, in a
// masked task, the tokens that were hidden.
// Source: the transform in front of the vocabulary is that of Devlin et al., "BERT",
//         arXiv:1810.04805, as transformers has it.
#pragma once
#include <memory>
#include <optional>

#include "torch/nn/module.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/task_head.h"

namespace gemini::trainer {

class TokenHead : public TaskHead {
 public:
  // Asks `layers` for the layers and registers them below `root`, by the spec's names. `table` is
  // that of the token embedding.
  TokenHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers,
            const std::shared_ptr<VocabularyTable>& table);
  torch::Tensor Logits(const HeadInput& input) const override;
  BatchLoss LossOf(HeadInput input, const Labels& labels,
                   const LossFactors& factors) const override;
  // Returns the sums of what routers did with all tokens, of those of this rank.
  torch::Tensor RouterSums(const torch::Tensor& sums) const { return head_->RouterSums(sums); }

 private:
  torch::Tensor Transform(torch::Tensor hidden) const;

  const bool is_causal_;
  const std::optional<Activation> activation_;
  std::shared_ptr<HeadAndLoss> head_;  // It is no child where it is the table alone.
  std::shared_ptr<Layer> transform_;   // Null, as norm_ is, where the head reads hidden states.
  std::shared_ptr<Layer> norm_;
};

}  // namespace gemini::trainer
