// SPDX-License-Identifier: Apache-2.0
// What a step does before its updates begin. It computes the gradient norm, writes back from DEVICE
// everything dirty that is updated in HOST, computes the trust ratios of layer-wise optimizers, and
// makes the intent, which client/update/bundle_update.h carries out.
// Order: the norm sums tensors in their order, each in blocks from its first element, so its bits
// do not depend on the layout.
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

// Adds those of `kept` that belong to this model, have a gradient and were not edited. A range that
// cannot be on DEVICE now is left out, too, and updated in HOST from a gradient in HOST.
void AddToDeviceUpdate(const ModelTensors& tensors, const ParameterEdits& edits,
                       const std::vector<bool>& has_gradient, const KeptForUpdate& kept,
                       DeviceUpdate& on_device);
// Clears the edits once the step is taken: updates of edited parameters are then in HOST.
void ForgetEdits(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                 ParameterEdits& edits);

// Returns the global norm of the gradients of the tensors with has_gradient[i], after writing back
// those that `on_device` does not have. OUT_OF_RANGE: it is not finite (names the first tensor
// whose part is not). Others: of ChunkStore::Acquire and of the kernels.
absl::StatusOr<double> GradientNorm(ModelTensors& tensors, GradientSquares& squares,
                                    const DeviceUpdate& on_device,
                                    const std::vector<bool>& has_gradient, DeviceKernels& kernels);

// Writes back every trainable range, which in-place operators or earlier updates may have changed
// on DEVICE, except late gradients and what is updated on DEVICE. Drops the DEVICE copies of
// parameters, masters and moments that will be updated in HOST. So everything that can fail fails
// before the intent. FAILED_PRECONDITION: a trainable tensor or its gradient is pinned (names it).
// RESOURCE_EXHAUSTED: no HOST slot.
absl::Status LeaveDeviceForUpdate(ModelTensors& tensors, const DeviceUpdate& on_device,
                                  const std::vector<bool>& has_gradient);

// Returns the intent of the update to `step` of the tensors with has_gradient[i], each at its own
// next step, without trust ratios. `groups` has the hyper-parameters of each parameter group that a
// tensor is in, and of the first.
Intent MakeIntent(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                  const OptimizerSpec& optimizer, absl::Span<const OptimizerSpec> groups,
                  double gradient_scale, int64_t step);

// Computes the trust ratios of a layer-wise intent, from what is in HOST and NVMe and from what is
// updated on DEVICE. A tensor lies in one range, all of which is in one of the two. Errors: of
// ChunkStore::Acquire and DeviceKernels.
absl::Status FindTrustRatios(ModelTensors& tensors, absl::Span<const OptimizerSpec> groups,
                             const DeviceUpdate& on_device, DeviceKernels& kernels,
                             WorkerTeam& team, Intent& intent);

// Returns every trainable bundle that is not updated on DEVICE, in the order of first use.
std::vector<BundleId> BundlesToUpdate(const ModelTensors& tensors, const DeviceUpdate& on_device);
// Returns those of the bundles whose gradient is still on DEVICE.
std::vector<BundleId> BundlesWithLateGradients(const std::vector<BundleId>& bundles,
                                               const DeviceUpdate& on_device);

// Raises the step count and the version counter of each tensor that the intent updates.
void CountUpdates(ModelTensors& tensors, const Intent& intent);

}  // namespace gemini::client::hooks
