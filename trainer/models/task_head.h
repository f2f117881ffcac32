// SPDX-License-Identifier: Apache-2.0
// Declares the interface of what follows a model's blocks: the layers that a task needs, and its
// loss. Each task has one of its own (token_head.h, classifier_head.h, distogram_head.h).
// Owner:  one thread at a time.
// Errors: Torch's own exceptions pass through.
#pragma once
#include <optional>

#include "torch/types.h"
#include "trainer/models/batch.h"
#include "trainer/models/batch_loss.h"
#include "trainer/models/dropout_mask.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

// What leaves a model behind its blocks and its last norm.
struct HeadInput {
  torch::Tensor hidden;                     // [batch, sequence, embedding width].
  SharedDocuments documents = {};           // Of the rows; null where each is one.
  std::optional<DropoutDraw> dropout = {};  // Absent in evaluation, where nothing is dropped.
};

class TaskHead {
 public:
  virtual ~TaskHead() = default;
  // Returns logits: of tokens [batch, sequence, vocabulary], of a classification [batch, labels].
  virtual torch::Tensor Logits(const HeadInput& input) const = 0;
  // Returns the loss, but for the routers' part. `factors`: what backward will be given. Without
  // grad mode it counts hits, too, where labels are classes.
  virtual BatchLoss LossOf(HeadInput input, const Labels& labels,
                           const LossFactors& factors) const = 0;
};

}  // namespace gemini::trainer
