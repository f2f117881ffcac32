// SPDX-License-Identifier: Apache-2.0
// Holds a batch of rows, of images or of alignments: what a model reads, and what it is to predict.
#pragma once
#include <cstdint>

#include "ATen/ops/zeros.h"
#include "torch/types.h"
#include "trainer/families/task_spec.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

// What a batch is to predict.
struct Labels {
  // By task (trainer/families/task_spec.h). A label that is negative, or NaN, is not predicted.
  //     causal, masked    int64 [batch, sequence]: a label stands where its token does. That of a
  //                       causal task is predicted from the tokens before it; the model shifts
  //                       them, as transformers does.
  //                       Of an alignment masked labels are [batch, sequences, residues].
  //     distogram         int64 [batch, residues, residues]: the bin of each pair.
  //     classification    int64 [batch]: of a single label, the class.
  //                       fp32 [batch, num_labels]: of several 0 or 1; of a regression numbers.
  torch::Tensor values;
  int64_t count = 0;  // How many are predicted. Of a causal task the first of a row is not.

  // Returns those by which every token but the first of a row is predicted.
  static Labels AllOf(const torch::Tensor& tokens) {
    return {tokens, tokens.size(0) * (tokens.size(1) - 1)};
  }
  // Returns some of a task's shape for these inputs of a batch, on their device, all of which are
  // predicted. Their values mean nothing.
  static Labels OfTask(const TaskSpec& task, const torch::Tensor& inputs) {
    if (task.kind == TaskKind::kCausal) return AllOf(inputs);
    if (task.kind == TaskKind::kMasked) return {inputs, inputs.numel()};
    const int64_t rows = inputs.size(0);
    if (task.kind == TaskKind::kDistogram) {
      const int64_t residues = inputs.size(2);
      return {at::zeros({rows, residues, residues}, inputs.options()), rows * residues * residues};
    }
    if (task.problem == ProblemType::kSingleLabel) {
      return {at::zeros({rows}, inputs.options().dtype(torch::kInt64)), rows};
    }
    return {at::zeros({rows, task.num_labels}, inputs.options().dtype(torch::kFloat32)),
            rows * task.num_labels};
  }
  // Returns the labels of a causal task by which the first `rows` rows are predicted, and nothing
  // of the others.
  static Labels OfFirst(const torch::Tensor& tokens, int64_t rows) {
    Labels labels = AllOf(tokens.narrow(0, 0, rows));
    if (rows == tokens.size(0)) return labels;
    labels.values = tokens.clone();
    labels.values.narrow(0, rows, tokens.size(0) - rows).fill_(-1);
    return labels;
  }
};

struct Batch {
  // Tokens, int64 [batch, sequence]; of a model of images pixels, fp32 [batch, channels, height,
  // width]; of a pair trunk residues, int64 [batch, sequences, residues].
  torch::Tensor inputs;
  Labels labels = {};
  SharedDocuments documents = {};  // The rows have these.
  torch::Tensor types = {};        // Of each token its type; undefined where all are of type 0.
};

}  // namespace gemini::trainer
