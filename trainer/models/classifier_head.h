// SPDX-License-Identifier: Apache-2.0
// Computes the head of a classification: a linear layer that reads one token of each sequence, the
// last one that is no padding, or the first one through a pooler. Its losses are those of
// transformers:
//     single label    the cross entropy of the class
//     several labels  the binary cross entropy of each label
//     regression      the squared error of each number
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/task_head.h"

namespace gemini::trainer {

// Returns the sum of the cross entropies of `classes`, int64 [rows], for logits [rows, classes] of
// any floating type. A class of -1 counts for nothing, and there are `count` others. Without grad
// mode it counts hits, too.
BatchLoss LossOfClasses(const torch::Tensor& logits, const torch::Tensor& classes, int64_t count);

class ClassifierHead : public TaskHead {
 public:
  // Asks `layers` for the layers and registers them below `root`, by the spec's names. The spec has
  // a classifier. `site`: of its dropout, which no other layer of the model has.
  ClassifierHead(torch::nn::Module& root, const ModelSpec& spec, LayerSet& layers, int64_t site);
  torch::Tensor Logits(const HeadInput& input) const override;
  BatchLoss LossOf(HeadInput input, const Labels& labels,
                   const LossFactors& factors) const override;

 private:
  // Returns the tokens that are read: [batch, width].
  torch::Tensor TokensRead(const HeadInput& input) const;

  const ClassifierSpec spec_;
  const ProblemType problem_;
  const int64_t num_labels_;
  const int64_t site_;
  std::shared_ptr<Layer> whole_sequences_;  // Null where hidden states are those of all tokens.
  std::shared_ptr<Layer> pooler_;           // Null without one.
  std::shared_ptr<Layer> classifier_;
};

}  // namespace gemini::trainer
