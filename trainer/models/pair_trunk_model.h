// SPDX-License-Identifier: Apache-2.0
// Implements the model of a ModelSpec with a pair trunk: it embeds the residues of an alignment and
// the pairs of its first sequence's, refines both by equal blocks, and has the head of a task. The
// masked task reads the alignment, and a distogram the pairs.
// Order:  the alignment is the sum of a table of residues and, for all sequences, one of the first
//         sequence's; pair (i, j) is the sum of two tables of the first sequence's residues, one of
//         residue i and one of residue j, and one of i - j.
// Limits: without deletions, templates, extra sequences, recycling and dropout.
// Graph:  what the task does not read of the last block has a gradient of zeros, so that all
//         parameters have a gradient in each step, whichever schedule runs it.
// Source: Jumper et al., Nature 596, 2021, supplementary methods 1.5, Algorithms 3 to 5, 1.9.8 and
//         1.9.9.
#pragma once
#include <memory>

#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/staged_model.h"
#include "trainer/models/task_head.h"

namespace gemini::trainer {

class PairTrunk : public StagedModel {
 public:
  // Asks `layers` for the layers, and does not keep it. The spec has a pair trunk, and its task is
  // masked or distogram. Throws c10::Error.
  PairTrunk(const ModelSpec& spec, LayerSet& layers);
  Stream Embed(const Batch& batch) override;
  BatchContext ContextOf(const torch::Tensor& hidden) const override;
  torch::Tensor Head(const Stream& last, const BatchContext& context) override;
  BatchLoss LossOf(Stream last, const BatchContext& context, const Labels& labels,
                   const LossFactors& factors) override;

 private:
  const PairTrunkSpec spec_;
  const bool reads_pair_;  // The head does, and not the alignment.
  // In the order of Embed.
  std::shared_ptr<Layer> residues_;
  std::shared_ptr<Layer> first_sequence_;
  std::shared_ptr<Layer> left_;
  std::shared_ptr<Layer> right_;
  std::shared_ptr<Layer> relative_positions_;
  std::unique_ptr<TaskHead> head_;
};

}  // namespace gemini::trainer
