// SPDX-License-Identifier: Apache-2.0
// Holds the loss of a batch in the graph, and what backward multiplies it by. All that a batch has
// labels for weighs alike, whichever batch it is in.
// Thread: one at a time.
// Errors: Torch's own exceptions pass through.
#pragma once
#include <cstdint>

#include "torch/types.h"
#include "trainer/tasks/loss_values.h"

namespace gemini::trainer {

// What backward multiplies the parts of a batch's loss by.
struct LossFactors {
  double label = 1;   // For the loss of each label.
  double router = 1;  // For the routers' loss of the batch.

  // Returns those by which a step learns from `scale` times its mean loss: the mean over all of its
  // `labels`, > 0, and over the routers' losses of its micro-batches. The mean of micro-batches'
  // means would be another one where some have fewer labels.
  static LossFactors OfStep(double scale, int64_t labels, int64_t micro_batches) {
    return {scale / static_cast<double>(labels), scale / static_cast<double>(micro_batches)};
  }
};

// The loss of a batch, in fp32: the mean over its labels, and of some models a part of the routers'
// loss.
struct BatchLoss {
  torch::Tensor sum;          // Over the labels; of no dimension, as the routers'.
  int64_t count = 0;          // Of the labels; 0 for rows of one token.
  torch::Tensor hits = {};    // Of Hits, int64 [2] or of classes up to five [1]; or undefined.
  torch::Tensor router = {};  // Undefined where the total does not include it.
  double router_coefficient = 0;

  // Reads the numbers; on a GPU that waits for them. NaN without a label. Those of a dry run, on
  // the meta device, are 0.
  LossValues Values() const;
  // The same in the graph.
  torch::Tensor Total() const;
  // Adds the gradient of the sum and of the routers' part, each times its factor, to .grad of the
  // parameters.
  void Backward(const LossFactors& factors) const;
};

}  // namespace gemini::trainer
