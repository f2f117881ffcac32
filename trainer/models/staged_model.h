// SPDX-License-Identifier: Apache-2.0
// Declares the interface of a model that runs by stages: what embeds a batch, blocks, and what a
// task has behind them.
// Names:  named_parameters() has the names of transformers, in the order of first use in Forward,
//         but that the bias of a head stands before its transform. A tied head is no parameter of
//         its own. There are no buffers.
// Memory: parameters are empty tensors of the options given: on the meta device they take none, and
//         nothing is initialised anywhere. Values come from a checkpoint
//         (trainer/checkpoint/hf_checkpoint.h).
// Owner:  one thread at a time.
// Errors: Torch's own exceptions pass through Forward.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/layer_set.h"
#include "trainer/models/batch.h"
#include "trainer/models/batch_loss.h"
#include "trainer/models/recompute.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

class StagedModel : public torch::nn::Module {
 public:
  // The stages of Forward. Embed maps a batch, of which it reads no labels, to the input of the
  // first block, or to a part of each sequence of it (trainer/layer_set.h); ContextOf makes from
  // its hidden tensor what all blocks read of the batch; the blocks follow; Head maps what leaves
  // the last block to logits. In place of them LossOf gives the loss, with which backward costs the
  // least if it is told its factors. Both take the batch's context, for they may run when another
  // batch has begun.
  virtual Stream Embed(const Batch& batch) = 0;
  virtual BatchContext ContextOf(const torch::Tensor& hidden) const = 0;
  virtual torch::Tensor Head(const Stream& last, const BatchContext& context) = 0;
  virtual BatchLoss LossOf(Stream last, const BatchContext& context, const Labels& labels,
                           const LossFactors& factors) = 0;
  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }
  // Says whether backwards from now on are of a step's last micro-batch: what is done once a step,
  // a model of several ranks does in these. They are at first.
  virtual void set_last_micro_batch(bool /*is_last*/) {}
  // Says that so many micro-batches follow, of which each stage runs all before the next one
  // begins (vertical_schedule.h), or whose stages are in several ranks, and that nothing of earlier
  // ones is needed any more. Without it each one runs through all stages.
  virtual void BeginMicroBatches(int64_t /*count*/) {}
  // Around an evaluation. A model that several ranks have in parts brings its whole tensors up to
  // date first, so that each batch does the same, and so does each step behind it.
  virtual void BeginEvaluation() {}
  virtual void EndEvaluation() {}
  // Forgets what micro-batches that were given up have left, and what was taken for values of
  // parameters. Gradients of parameters are the caller's to drop.
  virtual void Forget() {}
  // Between these, one stage runs: Embed, which is 0, a block, or behind them LossOf. A model that
  // several ranks have in parts keeps what the stage computes with.
  virtual void HoldStage(size_t /*stage*/) {}
  virtual void ReleaseStage(size_t /*stage*/) {}

  // Returns what leaves block `end` - 1 for what enters block `begin`.
  Stream ForwardBlocks(Stream stream, const BatchContext& context, size_t begin, size_t end) const;

  // Returns the logits of the task's head (trainer/models/task_head.h) for tokens [batch, sequence]
  // int64, each in [0, vocab_size), sequence <= max_sequence. Elements are dropped in training mode
  // only.
  torch::Tensor Forward(const torch::Tensor& tokens) { return Forward({.inputs = tokens}); }
  // The same with the batch's types. It reads no batch.documents: the documents are those that
  // set_documents was called with.
  torch::Tensor Forward(const Batch& batch);

  // Returns the loss of transformers, without logits for all tokens. `factors`: what backward will
  // be given.
  BatchLoss Losses(const torch::Tensor& tokens, const Labels& labels, const LossFactors& factors);
  // The same with the batch's types, after it calls set_documents with the batch's documents: they
  // stay set.
  BatchLoss Losses(const Batch& batch, const LossFactors& factors);
  // The same, with labels equal to the inputs.
  BatchLoss Losses(const torch::Tensor& tokens, const LossFactors& factors) {
    return Losses(tokens, Labels::AllOf(tokens), factors);
  }
  // Returns the mean loss of a batch that is a step of its own, in the graph.
  torch::Tensor Loss(const torch::Tensor& tokens) {
    const Labels all = Labels::AllOf(tokens);
    return Losses(tokens, all, LossFactors::OfStep(/*scale=*/1, all.count, /*micro_batches=*/1))
        .Total();
  }

  // Sets whether Forward keeps only each block's input and recomputes the rest in backward. Off at
  // first.
  void set_recompute(bool recompute) { recompute_ = recompute; }
  bool recompute() const { return recompute_; }
  // Sets what masks the next forwards in training mode draw. All numbers are 0 at first.
  void set_dropout_draw(const DropoutDraw& draw) { dropout_draw_ = draw; }
  const DropoutDraw& dropout_draw() const { return dropout_draw_; }
  // Returns the draw in training mode, and none in evaluation.
  std::optional<DropoutDraw> dropout() const {
    return is_training() ? std::optional(dropout_draw_) : std::nullopt;
  }
  // Sets how forwards run experts. Planned at first.
  void set_routing(const ExpertRouting& routing) { routing_ = routing; }
  const ExpertRouting& routing() const { return routing_; }
  // Sets which documents the rows of the next forwards have. Null at first: each row is one.
  void set_documents(SharedDocuments documents) { documents_ = std::move(documents); }
  const SharedDocuments& documents() const { return documents_; }

 protected:
  std::vector<std::shared_ptr<Block>> blocks_;  // Filled by the model's constructor.

 private:
  // Returns what leaves the last block, and sets `context` to that of the batch.
  Stream EmbedAndForward(const Batch& batch, BatchContext& context);

  bool recompute_ = false;
  DropoutDraw dropout_draw_;
  ExpertRouting routing_;
  SharedDocuments documents_;
};

// Makes the model of the spec, in training mode. `options` are those of the parameters: a floating
// dtype, any device. INVALID_ARGUMENT: another dtype. RESOURCE_EXHAUSTED: Torch cannot make it, for
// lack of memory or of the device, or because names of the spec collide.
absl::StatusOr<std::unique_ptr<StagedModel>> MakeStagedModel(
    const ModelSpec& spec, const torch::TensorOptions& options,
    const VocabularyOptions& vocabulary = {});
// The same of the layers that `layers` makes. RESOURCE_EXHAUSTED: likewise.
absl::StatusOr<std::unique_ptr<StagedModel>> MakeStagedModel(const ModelSpec& spec,
                                                             LayerSet& layers);

// Returns names and shapes of all parameters in their order. A block of a table is one of its own.
std::vector<ParameterShape> ParameterShapesOf(const torch::nn::Module& model);

// Fills the parameters of a model that lies in plain memory (CPU, fp32, contiguous).
// INVALID_ARGUMENT: it does not, or the checkpoint does not match.
absl::Status LoadModel(const HfCheckpoint& checkpoint, torch::nn::Module& model);

}  // namespace gemini::trainer
