// SPDX-License-Identifier: Apache-2.0
// Declares the interface between the training loop and the place where a model's parameters,
// gradients and moments lie: managed by a session (parameter_store_managed.h), or in plain memory
// (parameter_store_reference.h). The same run over either gives the same bits.
// Names:  those of the module's named_parameters.
// Owner:  the loop's thread.
// Units:  bytes of fp32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/session/training_stats.h"
#include "client/update/optimizer_spec.h"
#include "gemini/byte_range.h"
#include "gemini/chunk_kind.h"
#include "gemini/optimizer_kind.h"

namespace gemini::trainer {

class ParameterStore {
 public:
  // Receives the tensor's bytes, pieces in rising order; they are valid during the call only.
  using Sink =
      absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<const std::byte> bytes)>;
  // Fills all of `bytes`, which belong at `offset_bytes` of the tensor.
  using Source = absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<std::byte> bytes)>;

  virtual ~ParameterStore() = default;

  // Updates every parameter that has a gradient. FAILED_PRECONDITION, with nothing changed: a
  // gradient holds a NaN or an infinity; the message names the parameter.
  virtual absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) = 0;
  // Returns the optimizer, which determines the moments that exist.
  virtual OptimizerKind optimizer() const = 0;

  // Streams kParam, kExpAvg or kExpAvgSq of a parameter, or a range of it. Works after an error of
  // training, too.
  absl::Status Read(absl::string_view name, ChunkKind kind, Sink sink) {
    return ReadRange(name, kind, {}, sink);
  }
  virtual absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                 Sink sink) = 0;
  // Writes them, to load or to resume.
  virtual absl::Status Write(absl::string_view name, ChunkKind kind, Source source) = 0;

  // Return the updates that one parameter has had, and set those of the model or of one parameter.
  virtual absl::StatusOr<int64_t> TensorStep(absl::string_view name) const = 0;
  virtual absl::Status SetStep(int64_t step) = 0;
  virtual absl::Status SetTensorStep(absl::string_view name, int64_t step) = 0;

  // Runs work that reads, on the first of the ranks that share the parameters, while the others
  // answer it; without ranks it is just run. Returns its status on all of them.
  virtual absl::Status OnFirstRank(absl::FunctionRef<absl::Status()> work) { return work(); }

  // Name what runs between the two a pass of its own, such as an evaluation, with its own plan.
  // They nest; use PhaseScope.
  virtual void BeginPhase(absl::string_view /*name*/) {}
  virtual void EndPhase() {}

  // Returns the first error of an operator in forward or backward; its result must not be used.
  virtual absl::Status status() const = 0;
  // Called when an operator found no memory and none runs now. Returns whether there is more than
  // before.
  virtual bool GiveWay() { return false; }
  // Forgets the gradients of backwards that were given up, behind zero_grad: waits for those that
  // are on their way, whose memory goes back. The next ones are the first of a step.
  virtual void ForgetGradients() {}
  // Peaks are since ResetPeaks.
  virtual client::TrainingStats usage() const = 0;
  virtual void ResetPeaks() = 0;
};

// Keeps the store in a phase while this lives.
class PhaseScope {
 public:
  PhaseScope(ParameterStore& store, absl::string_view name) : store_(store) {
    store_.BeginPhase(name);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  ~PhaseScope() { store_.EndPhase(); }

 private:
  ParameterStore& store_;
};

}  // namespace gemini::trainer
