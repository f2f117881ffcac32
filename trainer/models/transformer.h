// SPDX-License-Identifier: Apache-2.0
// Implements the model of any ModelSpec: embeddings, equal blocks of attention and a feed-forward
// part, and the head of a task.
// Source: Vaswani et al., "Attention Is All You Need", arXiv:1706.03762; what families do otherwise
//         is in trainer/families/.
#pragma once
#include <memory>

#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/staged_model.h"
#include "trainer/models/task_head.h"
#include "trainer/models/token_head.h"

namespace gemini::trainer {

class Transformer : public StagedModel {
 public:
  // Asks `layers` for the layers, and does not keep it. Throws c10::Error.
  Transformer(const ModelSpec& spec, LayerSet& layers);
  Stream Embed(const Batch& batch) override;
  BatchContext ContextOf(const torch::Tensor& hidden) const override;
  torch::Tensor Head(const Stream& last, const BatchContext& context) override;
  BatchLoss LossOf(Stream last, const BatchContext& context, const Labels& labels,
                   const LossFactors& factors) override;

 private:
  // The tokens of a batch, whose embeddings are looked up, or those of images. Neither has dropout.
  torch::Tensor EmbedTokens(const Batch& batch);
  torch::Tensor EmbedImages(const torch::Tensor& pixels);
  // Returns what the head takes, for the output of the last block.
  HeadInput Finish(torch::Tensor hidden, const BatchContext& context) const;
  // Returns the rows of the position table for tokens [batch, sequence], as int64. The table must
  // exist. The shape is [batch, sequence] if there are documents or
  // spec.positions->for_each_sequence, or [1, sequence].
  torch::Tensor PositionRows(const torch::Tensor& tokens) const;

  const ModelSpec spec_;
  const HiddenPart part_;
  // These two make tokens of images, and the tables below are those of tokens. Null for the other.
  std::shared_ptr<Layer> patches_;
  std::shared_ptr<Layer> image_tokens_;
  std::shared_ptr<VocabularyTable> token_embedding_;
  std::shared_ptr<Layer> type_embedding_;  // Null without a table, as the next.
  std::shared_ptr<Layer> position_embedding_;
  std::shared_ptr<Layer> embedding_norm_;  // Null without one.
  std::shared_ptr<Layer> project_in_;      // Null without projections.
  std::shared_ptr<Layer> final_norm_;      // Null without one.
  std::shared_ptr<Layer> project_out_;     // Null without projections.
  std::unique_ptr<TaskHead> head_;
  const TokenHead* token_head_ = nullptr;  // The same, where it predicts tokens.
};

}  // namespace gemini::trainer
