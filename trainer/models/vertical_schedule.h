// SPDX-License-Identifier: Apache-2.0
// Runs a step's micro-batches block by block: each block runs all of them, forward and then
// backward. So its parameters move to DEVICE once a pass and not once a micro-batch.
// Memory: between the blocks lies one activation [batch, sequence, width] for each block and
// micro-batch, and of a pair trunk two (trainer/models/stream.h), in an ActivationStore. The inside
// of a block is computed again in its backward, as by ForwardRecomputed.
// Bits: each parameter's gradient is the sum over the micro-batches in their order, and bit-equal
// to that of one micro-batch after the other. The weight of a tied embedding is an exception: all
// its gradients of the head are added before those of the look-up.
// Errors: those of the store; exceptions of the model pass through.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/models/activation_store.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {

// Adds the gradient of the loss of each of `micro_batches` (one at least; tokens and labels as
// StagedModel::Losses takes), times its factors, to .grad. Returns the losses. `check` gets the
// total before its backward; a status that is not OK ends the run. The first micro-batch draws the
// model's dropout_draw(), each further one that of the next number; the model is left at the last.
absl::StatusOr<std::vector<LossValues>> RunVertically(
    StagedModel& model, absl::Span<const Batch> micro_batches, ActivationStore& activations,
    absl::FunctionRef<absl::Status(int64_t micro_batch, double loss)> check,
    const LossFactors& factors);

}  // namespace gemini::trainer
