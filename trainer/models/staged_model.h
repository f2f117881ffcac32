// SPDX-License-Identifier: Apache-2.0
// A decoder-only language model.
// Names:  named_parameters() has the names of transformers, in the order of first use in Forward. A
//         tied head is no parameter of its own. There are no buffers.
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
#include "trainer/models/recompute.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

// The numbers of a batch's loss.
struct LossValues {
  double total = 0;  // What is learned from.
  double cross_entropy = 0;
  std::optional<double> router = {};  // The routers' loss, where the total includes it.
  int64_t labels = 0;                 // The cross entropy is their mean.
};

// Adds up the losses of batches, whose numbers of labels may differ, to that of all of them. The
// mean of their means would be another one. Its bytes may be sent to another rank.
class LossSum {
 public:
  // Adds a batch of `rows` rows.
  void Add(const LossValues& batch, int64_t rows);
  void Add(const LossSum& other);

  // Returns the mean cross entropy of all labels, and the routers' losses as the mean of all rows.
  // NaN without a label.
  LossValues Mean() const;

 private:
  double cross_entropies_ = 0;  // The sum over all labels.
  int64_t labels_ = 0;
  // These are sums over all rows.
  double beside_ = 0;  // What the totals have beside the cross entropies.
  std::optional<double> routers_ = {};
  int64_t rows_ = 0;
};

// What a batch is to predict. As with transformers, a label stands where its token does, and is
// predicted from the tokens before it; the model shifts them.
struct Labels {
  torch::Tensor ids;  // int64 [batch, sequence]. A negative one is not to be predicted.
  int64_t count = 0;  // How many of them are predicted: not negative, and not the first of a row.

  // Returns those by which every token but the first of a row is predicted.
  static Labels AllOf(const torch::Tensor& tokens) {
    return {tokens, tokens.size(0) * (tokens.size(1) - 1)};
  }
  // Returns those of the first `rows` rows: nothing of the others is predicted.
  static Labels OfFirst(const torch::Tensor& tokens, int64_t rows) {
    Labels labels = AllOf(tokens.narrow(0, 0, rows));
    if (rows == tokens.size(0)) return labels;
    labels.ids = tokens.clone();
    labels.ids.narrow(0, rows, tokens.size(0) - rows).fill_(-1);
    return labels;
  }
};

// A batch as a model takes it.
struct TokenBatch {
  torch::Tensor tokens;  // int64 [batch, sequence].
  Labels labels;
  SharedDocuments documents = {};  // The rows have these.
};

// What backward multiplies the parts of a batch's loss by.
struct LossFactors {
  double token = 1;   // For the cross entropy of each label.
  double router = 1;  // For the routers' loss of the batch.

  // Returns those by which a step learns from `scale` times its mean loss: the mean over all of its
  // `labels`, > 0, and over the routers' losses of its micro-batches. The mean of micro-batches'
  // means would be another one where some have fewer labels.
  static LossFactors OfStep(double scale, int64_t labels, int64_t micro_batches) {
    return {scale / static_cast<double>(labels), scale / static_cast<double>(micro_batches)};
  }
};

// The loss of a batch, in fp32: the mean cross entropy of predicting each label from the tokens
// before it, and of some models a part of the routers' loss.
struct BatchLoss {
  torch::Tensor sum;          // Of the cross entropies; of no dimension, as the next.
  int64_t count = 0;          // Of the labels; 0 for rows of one token.
  torch::Tensor router = {};  // Undefined where the total does not include it.
  double router_coefficient = 0;

  // Reads the numbers; on a GPU that waits for them. NaN without a label.
  LossValues Values() const;
  // The same in the graph.
  torch::Tensor Total() const;
  // Adds the gradient of the sum and of the routers' part, each times its factor, to .grad of the
  // parameters.
  void Backward(const LossFactors& factors) const;
};

class StagedModel : public torch::nn::Module {
 public:
  // The stages of Forward. Embed maps tokens to the input of the first block [batch, sequence,
  // width], or to a part of each sequence of it (trainer/layer_set.h); ContextOf makes from that
  // what all blocks read of the batch; the blocks follow; Head maps the hidden tensor of the last
  // block to logits. In place of them LossOf gives the loss, with which backward costs the least if
  // it is told its factors.
  virtual torch::Tensor Embed(const torch::Tensor& tokens) = 0;
  virtual BatchContext ContextOf(const torch::Tensor& hidden) const = 0;
  virtual torch::Tensor Head(const torch::Tensor& hidden) = 0;
  virtual BatchLoss LossOf(Stream last, const Labels& labels, const LossFactors& factors) = 0;
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
  // Between these, one stage runs: Embed, which is 0, a block, or behind them LossOf. A model that
  // several ranks have in parts keeps what the stage computes with.
  virtual void HoldStage(size_t /*stage*/) {}
  virtual void ReleaseStage(size_t /*stage*/) {}

  // Returns what leaves block `end` - 1 for what enters block `begin`.
  Stream ForwardBlocks(Stream stream, const BatchContext& context, size_t begin, size_t end) const;

  // Returns logits [batch, sequence, vocab] for tokens [batch, sequence] int64, each in
  // [0, vocab_size), sequence <= max_sequence. Elements are dropped in training mode only.
  torch::Tensor Forward(const torch::Tensor& tokens);

  // Returns the loss of transformers, without logits for all tokens. `factors`: what backward will
  // be given.
  BatchLoss Losses(const torch::Tensor& tokens, const Labels& labels, const LossFactors& factors);
  // The same of a batch with its documents, which are set.
  BatchLoss Losses(const TokenBatch& batch, const LossFactors& factors) {
    set_documents(batch.documents);
    return Losses(batch.tokens, batch.labels, factors);
  }
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
  // Returns what leaves the last block.
  Stream EmbedAndForward(const torch::Tensor& tokens);

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
