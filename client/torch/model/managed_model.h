// SPDX-License-Identifier: Apache-2.0
// Manages a module whose parameters, moments and gradients are in a session's chunks: it is the
// module's optimizer, and gives access to the tensors' values by name. TrainingSession::Manage
// makes it.
// Names: as the module's named_parameters and named_buffers. A tied weight is found by each of its
// names; tensors() lists its first.
// Life: as long as the TrainingSession object. Once that is closed, every call that can fail
// returns FAILED_PRECONDITION, and step() and tensors() return what they returned last.
// Thread: one at a time, and no operator on the module's tensors meanwhile.
// Errors: with an error latched in the session, Step, Write and Fetch return it. Read works on what
// is committed, so that a failed run can still be saved. For a tensor whose update failed, Read
// tries the update again, and returns the error if it fails again: never an older value. Operators
// that begin after the error change no parameter and no buffer (client/torch/hook/operator_hook.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/torch/hook/scoped_fetch.h"
#include "client/update/optimizer_spec.h"
#include "gemini/byte_range.h"
#include "gemini/chunk_kind.h"
#include "gemini/layout.h"

namespace gemini::client::hooks {

struct ManagedTensorInfo {
  std::string name;
  std::vector<int64_t> sizes;
  TensorGroup group = TensorGroup::kTrainable;
  int64_t num_elements = 0;
};

class ManagedModel {
 public:
  // Receives the `bytes` at `offset_bytes` of the tensor's fp32 values, piece by piece in rising
  // order. They are valid during the call only.
  using ByteSink =
      absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<const std::byte> bytes)>;
  // Fills all of `bytes`, which begin at `offset_bytes` of the tensor's fp32 values.
  using ByteSource =
      absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<std::byte> bytes)>;

  virtual ~ManagedModel() = default;

  // Takes one optimizer step over the parameters that have a gradient; replaces optimizer.step().
  // p.grad stays as it is until zero_grad. If no parameter of any process (StepOptions::exchange)
  // has a gradient nothing is done, as by Torch's optimizers, and it does not count as a step.
  // FAILED_PRECONDITION, with nothing
  // committed and nothing latched: a gradient holds a NaN or an infinity (names the first tensor),
  // a parameter got other storage or another shape (set_data, module.to, t_), a tensor was never
  // written, or a ScopedFetch of a tensor or gradient lives. RESOURCE_EXHAUSTED latches nothing
  // either. An update that fails later is latched and returned by the next call. Others: of the
  // exchange; and what fails behind its agreement is latched.
  virtual absl::StatusOr<StepResult> Step(const StepOptions& options) = 0;

  // Return the completed steps of the model, and of one parameter (steps in which it had a
  // gradient).
  virtual int64_t step() const = 0;
  virtual absl::StatusOr<int64_t> TensorStep(absl::string_view name) const = 0;
  // Set them, to resume. Call them between steps. INVALID_ARGUMENT: below step(), or, for a
  // parameter, below 0; or too large.
  virtual absl::Status SetStep(int64_t step) = 0;
  virtual absl::Status SetTensorStep(absl::string_view name, int64_t step) = 0;
  // Moves a parameter to parameter group `group` (StepOptions::groups); all are in group 0 at
  // first. INVALID_ARGUMENT: below 0, or kMaxParameterGroups (gemini/shm/intent_shm.h) or more.
  virtual absl::Status SetGroup(absl::string_view name, int64_t group) = 0;

  // Returns all managed tensors in the order of their chunks: parameters, then buffers.
  virtual const std::vector<ManagedTensorInfo>& tensors() const = 0;

  // Passes `range` of the tensor's fp32 values to `sink`, in the memory order of the original
  // tensor, from HOST slots and without a copy if they are stored as fp32. `kind` is kParam
  // (completed by its master), kExpAvg or kExpAvgSq (zeros before the first update), or kGrad
  // (zeros if there is none; one of the user's own is moved into its chunk, as by Step). NOT_FOUND:
  // there is no such name, or the tensor has no values of that kind (kMaster and the upper halves
  // are parts of others).
  // FAILED_PRECONDITION: a ScopedFetch of a tensor of its chunk lives, or, except for moments, the
  // tensor has other storage or another shape, as for Step.
  virtual absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                 ByteSink sink) = 0;
  absl::Status Read(absl::string_view name, ChunkKind kind, ByteSink sink) {
    return ReadRange(name, kind, {}, sink);
  }

  // Has `source` write the tensor's fp32 values into HOST slots, to load or to resume. `kind` is
  // kParam, kExpAvg or kExpAvgSq; a moment that was not written counts as zeros. After an error of
  // `source`, or any error after its first call, the tensor's old bytes are lost, and it counts as
  // not written. A write that is refused before that (as Read is, or because there is no HOST slot)
  // changes nothing. Calls in the order of tensors() are cheapest.
  virtual absl::Status Write(absl::string_view name, ChunkKind kind, ByteSource source) = 0;

  // Pins the storage of `tensor` (a parameter, buffer, gradient or a view of one) for raw access:
  // while the result lives, data_ptr() of the tensor and its views works. On a GPU it is an address
  // in the GPU's memory, which work that is enqueued next on the calling thread's current stream
  // may use. FAILED_PRECONDITION: `tensor` is not a managed tensor.
  virtual absl::StatusOr<ScopedFetch> Fetch(const at::Tensor& tensor, FetchAccess access) = 0;
};

}  // namespace gemini::client::hooks
