// SPDX-License-Identifier: Apache-2.0
// One AdamW step over a model's bundles in HOST memory: the gradient norm, then each bundle out of
// place and committed by its commit word.
// Memory: at most the 7 slots of one bundle are held at a time.
// Order:  the norm sums tensors in their order, each in blocks from its first element, so its bits do
//         not depend on the layout.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/managed_model.h"
#include "client/torch/model_tensors.h"

namespace gemini::client::hooks {

// Global norm of the gradients of the tensors with has_gradient[i]. Their chunks are brought to HOST.
// FAILED_PRECONDITION: it is not finite (names the first tensor whose part is not).
absl::StatusOr<double> GradientNorm(ModelTensors& tensors, const std::vector<bool>& has_gradient);

// Writes back every trainable range, which in-place operators may have changed on DEVICE, so that what
// can be refused is refused before the first commit. FAILED_PRECONDITION: a trainable tensor or its
// gradient is pinned (names it). RESOURCE_EXHAUSTED: no HOST slot.
absl::Status FlushForUpdate(ModelTensors& tensors);

// Updates every trainable bundle and commits it at `step`; tensors without a gradient keep their
// values, a moment that was never written counts as zeros. Raises the step count and the version
// counter of each updated tensor. Call FlushForUpdate first. On an error, `any_committed` says whether
// some bundles are at `step` already, the others being before it.
absl::Status UpdateBundles(ModelTensors& tensors, const std::vector<bool>& has_gradient,
                           const OptimizerSpec& optimizer, double learning_rate,
                           double clip_coefficient, int64_t step, bool& any_committed);

}  // namespace gemini::client::hooks
