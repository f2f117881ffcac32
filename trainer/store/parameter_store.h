// SPDX-License-Identifier: Apache-2.0
// The seam between the training loop and where a model's parameters, gradients and moments lie:
// managed by a session (parameter_store_managed.h), or in plain memory
// (parameter_store_reference.h). The same run over either gives the same bits.
// Names:  those of the module's named_parameters.
// Owner:  the loop's thread.
// Units:  bytes of fp32.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/chunk_kind.h"
#include "gemini/moment_format.h"
#include "gemini/optimizer_kind.h"
#include "gemini/stall_cause.h"
#include "trainer/config/decay_exemptions.h"

namespace gemini::trainer {

// An optimizer as all stores run it (client/kernels/update_rules.h). Parameters of at least two
// dimensions decay, unless `no_decay` exempts them.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  DecayExemptions no_decay = {};
  double momentum = 0.9;            // For SGD and LARS.
  double trust_coefficient = 1e-3;  // For LARS.
  MomentFormat moments = MomentFormat::kFp32;
  uint64_t rounding_seed = 0;  // For stochastic rounding of 8-bit moments; 0 rounds to nearest.
};

struct UpdateOptions {
  double learning_rate = 0;
  double max_grad_norm = 0;  // 0: no clipping.
  double loss_scale = 1;     // What the loss was multiplied by; >= 1.
  // A NaN or an infinity in a gradient is no error: nothing is updated.
  bool skip_non_finite = false;
};

struct UpdateResult {
  double grad_norm = 0;  // Norm of the unscaled gradients, before clipping.
  double clip_coefficient = 1;
  bool skipped = false;  // By UpdateOptions::skip_non_finite.
};

// Totals since the start, except for the peaks (since ResetPeaks) and what a session holds.
struct StoreUsage {
  int64_t device_budget_bytes = 0;  // 0: no budget.
  int64_t device_peak_bytes = 0;
  int64_t non_model_peak_bytes = 0;
  int64_t pinned_peak_bytes = 0;  // The floor seen, ever.
  int64_t host_bytes = 0;
  int64_t registered_host_bytes = 0;  // HOST that a session's GPU copies from and to itself.
  std::string registration_error;     // Why no more of HOST will be registered.
  int64_t nvme_bytes = 0;
  int64_t fetch_bytes = 0;
  int64_t evict_bytes = 0;
  double stall_seconds = 0;
  std::array<double, kNumStallCauses> stall_seconds_by_cause = {};  // Its parts, by StallCause.
  int64_t requests_given_up = 0;  // Requests that the server did not answer in time.
  int64_t planned_rounds = 0;  // Steps and evaluation batches that followed their plan to the end.
  // Rounds that left their plan, by Divergence.
  std::array<int64_t, kNumDivergences> divergences = {};
};

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
  virtual absl::StatusOr<UpdateResult> Update(const UpdateOptions& options) = 0;
  // Returns the optimizer, which determines the moments that exist.
  virtual OptimizerKind optimizer() const = 0;

  // Streams kParam, kExpAvg or kExpAvgSq of a parameter. Works after an error of training, too.
  virtual absl::Status Read(absl::string_view name, ChunkKind kind, Sink sink) = 0;
  // Writes them, to load or to resume.
  virtual absl::Status Write(absl::string_view name, ChunkKind kind, Source source) = 0;

  // Return the updates that one parameter has had, and set those of the model or of one parameter.
  virtual absl::StatusOr<int64_t> TensorStep(absl::string_view name) const = 0;
  virtual absl::Status SetStep(int64_t step) = 0;
  virtual absl::Status SetTensorStep(absl::string_view name, int64_t step) = 0;

  // Name what runs between the two a pass of its own, such as an evaluation, with its own plan.
  // They nest; use PhaseScope.
  virtual void BeginPhase(absl::string_view /*name*/) {}
  virtual void EndPhase() {}

  // Returns the first error of an operator in forward or backward; its result must not be used.
  virtual absl::Status status() const = 0;
  // Called when an operator found no memory and none runs now. Returns whether there is more than
  // before.
  virtual bool GiveWay() { return false; }
  virtual StoreUsage usage() const = 0;
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
