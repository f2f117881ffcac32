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
#include <vector>

#include "absl/status/statusor.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/models/recompute.h"

namespace gemini::trainer {

// The numbers of a batch's loss.
struct LossValues {
  double total = 0;  // What is learned from.
  double cross_entropy = 0;
  std::optional<double> router = {};  // The routers' loss, where the total includes it.

  // Adds another one, multiplied by `times` and divided by `parts`.
  void Add(const LossValues& other, int64_t times, int64_t parts);
};

// The loss of a batch, in fp32: the mean cross entropy of predicting token i + 1 of each row from
// those up to i, and of some models a part of the routers' loss.
struct BatchLoss {
  torch::Tensor sum;          // Of the cross entropies; of no dimension, as the next.
  int64_t count = 0;          // Of the predictions; 0 for rows of one token.
  torch::Tensor router = {};  // Undefined where the total does not include it.
  double router_coefficient = 0;

  // What backward takes for `sum` where the total is multiplied by `factor`.
  double GradientFor(double factor) const { return factor / static_cast<double>(count); }
  // Reads the numbers; on a GPU that waits for them. NaN without a prediction.
  LossValues Values() const;
  // The same in the graph.
  torch::Tensor Total() const;
  // Adds the gradient of `factor` times the total to .grad of the parameters.
  void Backward(double factor) const;
};

class CausalLm : public torch::nn::Module {
 public:
  // The stages of Forward. Embed maps tokens to the input of the first block [batch, sequence,
  // width]; ContextOf makes from that what all blocks read of the batch; the blocks follow; Head
  // maps the hidden tensor of the last block to logits. In place of them LossOf gives the loss of
  // predicting `tokens`, with which backward costs the least if it is told its `factor`.
  virtual torch::Tensor Embed(const torch::Tensor& tokens) = 0;
  virtual BatchContext ContextOf(const torch::Tensor& hidden) const = 0;
  virtual torch::Tensor Head(const torch::Tensor& hidden) = 0;
  virtual BatchLoss LossOf(Stream last, const torch::Tensor& tokens, double factor) = 0;
  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }
  // Says whether backwards from now on are of a step's last micro-batch: what is done once a step,
  // a model of several ranks does in these. They are at first.
  virtual void set_last_micro_batch(bool /*is_last*/) {}
  // Says that so many micro-batches follow, of which each stage runs all before the next one
  // begins (vertical_schedule.h), and that nothing of earlier ones is needed any more. Without it
  // each one runs through all stages.
  virtual void BeginMicroBatches(int64_t /*count*/) {}
  // Between these, one stage runs: Embed, which is 0, a block, or behind them LossOf. A model that
  // several ranks have in parts keeps what the stage computes with.
  virtual void HoldStage(size_t /*stage*/) {}
  virtual void ReleaseStage(size_t /*stage*/) {}

  // Returns logits [batch, sequence, vocab] for tokens [batch, sequence] int64, each in
  // [0, vocab_size), sequence <= max_sequence. Elements are dropped in training mode only.
  torch::Tensor Forward(const torch::Tensor& tokens);

  // Returns the loss of transformers with labels equal to the inputs, without logits for all
  // tokens. `factor`: what it will be multiplied by for backward.
  BatchLoss Losses(const torch::Tensor& tokens, double factor = 1);
  torch::Tensor Loss(const torch::Tensor& tokens) { return Losses(tokens).Total(); }

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

 protected:
  std::vector<std::shared_ptr<Block>> blocks_;  // Filled by the model's constructor.

 private:
  // Returns what leaves the last block.
  Stream ForwardBlocks(const torch::Tensor& tokens);

  bool recompute_ = false;
  DropoutDraw dropout_draw_;
  ExpertRouting routing_;
};

// Makes the model of the spec, in training mode. `options` are those of the parameters: a floating
// dtype, any device. INVALID_ARGUMENT: another dtype. RESOURCE_EXHAUSTED: Torch cannot make it, for
// lack of memory or of the device, or because names of the spec collide.
absl::StatusOr<std::unique_ptr<CausalLm>> MakeCausalLm(const ModelSpec& spec,
                                                       const torch::TensorOptions& options,
                                                       const VocabularyOptions& vocabulary = {});

// Returns names and shapes of all parameters in their order. A block of a table is one of its own.
std::vector<ParameterShape> ParameterShapesOf(const torch::nn::Module& model);

// Fills the parameters of a model that lies in plain memory (CPU, fp32, contiguous).
// INVALID_ARGUMENT: it does not, or the checkpoint does not match.
absl::Status LoadModel(const HfCheckpoint& checkpoint, torch::nn::Module& model);

}  // namespace gemini::trainer
