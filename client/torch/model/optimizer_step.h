// SPDX-License-Identifier: Apache-2.0
// What a step needs before its updates begin: the gradient norm, nothing dirty on DEVICE of what is
// updated in HOST, the trust ratios of layer-wise optimizers, and the intent that says the rest
// (client/update/bundle_update.h does it).
// Order: the norm sums tensors in their order, each in blocks from its first element, so its bits
//        do not depend on the layout.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/kernels/device_kernels.h"
#include "client/plan/plan_binding.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/model_tensors.h"
#include "client/torch/model/parameter_edits.h"
#include "client/update/device_update.h"
#include "client/update/gradient_squares.h"
#include "gemini/ids.h"
#include "gemini/shm/intent_shm.h"
#include "gemini/system/worker_team.h"

namespace gemini::client::hooks {

// Adds what of `kept` is of this model, has a gradient and was not edited. What cannot be on DEVICE
// now is left out, too, and updated in HOST from a gradient in HOST.
void AddToDeviceUpdate(const ModelTensors& tensors, const ParameterEdits& edits,
                       const std::vector<bool>& has_gradient, const KeptForUpdate& kept,
                       DeviceUpdate& on_device);
// Once the step is taken, whose updates of edited parameters are in HOST.
void ForgetEdits(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                 ParameterEdits& edits);

// Global norm of the gradients of the tensors with has_gradient[i], after those that `on_device`
// does not have are written back. OUT_OF_RANGE: it is not finite (names the first tensor whose part
// is not). Others: of ChunkStore::Acquire and of the kernels.
absl::StatusOr<double> GradientNorm(ModelTensors& tensors, GradientSquares& squares,
                                    const DeviceUpdate& on_device,
                                    const std::vector<bool>& has_gradient, DeviceKernels& kernels);

// Writes back every trainable range but late gradients and what is updated on DEVICE, which
// in-place operators or earlier updates may have changed there, and forgets the DEVICE copies of
// parameters, masters and moments that will be updated in HOST, so that all that can be refused is
// refused before the intent.
// FAILED_PRECONDITION: a trainable tensor or its gradient is pinned (names it). RESOURCE_EXHAUSTED:
// no HOST slot.
absl::Status LeaveDeviceForUpdate(ModelTensors& tensors, const DeviceUpdate& on_device,
                                  const std::vector<bool>& has_gradient);

// The intent of the update to `step` of the tensors with has_gradient[i], each at its own next
// step. Without trust ratios. `groups`: the hyper-parameters of each parameter group that a tensor
// is in, and of the first.
Intent MakeIntent(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                  const OptimizerSpec& optimizer, absl::Span<const OptimizerSpec> groups,
                  double gradient_scale, int64_t step);

// Computes the trust ratios of a layer-wise intent, from what is in HOST and NVMe and from what is
// updated on DEVICE: a tensor lies in one range, all of which is here or there. Errors: of
// ChunkStore::Acquire and DeviceKernels.
absl::Status FindTrustRatios(ModelTensors& tensors, absl::Span<const OptimizerSpec> groups,
                             const DeviceUpdate& on_device, DeviceKernels& kernels,
                             WorkerTeam& team, Intent& intent);

// Every trainable bundle that is not updated on DEVICE, in the order of first use.
std::vector<BundleId> BundlesToUpdate(const ModelTensors& tensors, const DeviceUpdate& on_device);
// Of these, those whose gradient is on DEVICE still.
std::vector<BundleId> BundlesWithLateGradients(const std::vector<BundleId>& bundles,
                                               const DeviceUpdate& on_device);

// Raises the step count and the version counter of each tensor that the intent updates.
void CountUpdates(ModelTensors& tensors, const Intent& intent);

}  // namespace gemini::client::hooks
