// SPDX-License-Identifier: Apache-2.0
// Takes one optimizer step of a managed model, from the last operator to the recorded intent.
// client/update/bundle_update.h then carries out the intent.
// Stages, in this order: Collect the gradients, their Squares, LeaveDevice with what is updated in
// HOST, and Begin the update, which records its intent. Between Squares and LeaveDevice the caller
// agrees with other processes on the norm: until then nothing has changed except where bytes are
// stored.
// Order: squares are by tensor, each in blocks from its first element, so the bits of their sum do
// not depend on the layout.
// Owner: a step of SpaceModel. The destructor ends the operator that stands for the update.
// Thread: the one that steps.
// Errors: after an error of any stage the step is not taken, and no parameter or moment has
// changed.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/copy/measured_spans.h"
#include "client/kernels/device_kernels.h"
#include "client/session/session.h"
#include "client/torch/model/gradients.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/model_tensors.h"
#include "client/torch/model/parameter_edits.h"
#include "client/update/device_update.h"
#include "client/update/gradient_squares.h"
#include "client/update/step_exchange.h"
#include "gemini/ids.h"
#include "gemini/shm/intent_shm.h"

namespace gemini::client::hooks {

class UpdateStep {
 public:
  // All arguments outlive this.
  UpdateStep(ModelTensors& tensors, ParameterEdits& edits, GradientSquares& squares,
             const OptimizerSpec& optimizer, Session& session, DeviceKernels& kernels)
      : tensors_(tensors),
        edits_(edits),
        squares_(squares),
        optimizer_(optimizer),
        session_(session),
        kernels_(kernels) {}
  ~UpdateStep();
  UpdateStep(const UpdateStep&) = delete;
  UpdateStep& operator=(const UpdateStep&) = delete;

  // Waits until each gradient is in its chunk, on DEVICE if the plan keeps it there and else in
  // HOST, and pauses planned moves. Returns whether there are gradients; if not, there is nothing
  // to update, and no further stage.
  // FAILED_PRECONDITION: a tensor has no values (ModelTensor::written). Others: of
  // Gradients::Collect.
  absl::StatusOr<bool> Collect(Gradients& gradients);

  // Returns the block squares of the gradients, after writing back those that are not kept for the
  // update. OUT_OF_RANGE: a gradient holds a NaN or an infinity (names the first tensor). Others:
  // of ChunkStore::Acquire and of the kernels.
  absl::StatusOr<SquaresByTensor> Squares();

  // Writes back every trainable range, which in-place operators or earlier updates may have changed
  // on DEVICE, except late gradients and what is updated on DEVICE. Drops the DEVICE copies of
  // parameters, masters and moments that will be updated in HOST. So everything that can fail fails
  // before the intent. FAILED_PRECONDITION: a trainable tensor or its gradient is pinned (names
  // it). RESOURCE_EXHAUSTED: no HOST slot.
  absl::Status LeaveDevice();

  // Makes the intent of the update to `step`, which takes each tensor with a gradient to its own
  // next step. Then computes the trust ratios of layer-wise optimizers, for which it asks the
  // exchange, updates on DEVICE what is kept there, and records the intent. `groups` has the
  // hyper-parameters of each parameter group that a tensor is in, and of the first. Errors: of
  // ChunkStore::Acquire, the kernels, the exchange and SpaceUpdates::Begin.
  absl::Status Begin(absl::Span<const OptimizerSpec> groups, double gradient_scale, int64_t step,
                     StepExchange& exchange, Intent& intent);

 private:
  bool AnyGradient(BundleId bundle) const;
  // Takes those of `kept` that belong to this model, have a gradient and were not edited. A range
  // that cannot be on DEVICE now is left out, too, and updated in HOST from a gradient in HOST.
  void KeepOnDevice(const KeptForUpdate& kept);
  // Return the block squares of gradients: those on DEVICE, in the order of ranges, bundles and
  // pieces; and those of all gradients, by tensor.
  absl::StatusOr<std::vector<double>> SquaresOnDevice();
  absl::StatusOr<SquaresByTensor> BlockSquares();
  Intent MakeIntent(absl::Span<const OptimizerSpec> groups, double gradient_scale,
                    int64_t step) const;
  // Computes the trust ratios of a layer-wise intent, from what is in HOST and NVMe and from what
  // is updated on DEVICE. A tensor is in one range, all of which is in one of the two.
  absl::Status FindTrustRatios(absl::Span<const OptimizerSpec> groups, StepExchange& exchange,
                               Intent& intent);
  // Returns every trainable bundle that is updated in HOST, in the order of first use.
  std::vector<BundleId> BundlesInHost() const;
  // Notes that the step is taken: raises the step count and the version counter of each tensor that
  // the intent updates, and clears the edits, as updates of edited parameters are then in HOST.
  void CountUpdates(const Intent& intent);

  ModelTensors& tensors_;
  ParameterEdits& edits_;
  GradientSquares& squares_;
  const OptimizerSpec& optimizer_;
  Session& session_;
  DeviceKernels& kernels_;
  std::vector<bool> has_gradient_;  // By tensor.
  // From Collect on, if there are gradients: it pins what the update has on DEVICE.
  std::optional<DeviceUpdate> on_device_;
  OperatorSpan timed_;  // Updates on DEVICE and trust ratios, which plans time themselves.
  bool is_taken_ = false;
};

}  // namespace gemini::client::hooks
