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

namespace gemini::trainer {

// An optimizer as all stores run it (client/kernels/update_rules.h); parameters of at least two
// dimensions decay.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;            // Of SGD and LARS.
  double trust_coefficient = 1e-3;  // Of LARS.
  MomentFormat moments = MomentFormat::kFp32;
  uint64_t rounding_seed = 0;  // Of the stochastic rounding of 8-bit moments; 0: to nearest.
};

struct UpdateOptions {
  double learning_rate = 0;
  double max_grad_norm = 0;  // 0: no clipping.
  double loss_scale = 1;     // What the loss was multiplied by; >= 1.
  // A NaN or an infinity in a gradient is no error: nothing is updated.
  bool skip_non_finite = false;
};

struct UpdateResult {
  double grad_norm = 0;  // Of the unscaled gradients, before clipping.
  double clip_coefficient = 1;
  bool skipped = false;  // By UpdateOptions::skip_non_finite.
};

// Totals since the start, but for the peaks (since ResetPeaks) and what a session holds.
struct StoreUsage {
  int64_t device_budget_bytes = 0;  // 0: no budget.
  int64_t device_peak_bytes = 0;
  int64_t non_model_peak_bytes = 0;
  int64_t pinned_peak_bytes = 0;  // The floor seen, ever.
  int64_t host_bytes = 0;
  int64_t registered_host_bytes = 0;  // Of a GPU's session: what it copies from and to by itself.
  std::string registration_error;     // Why no more of HOST is going to be.
  int64_t nvme_bytes = 0;
  int64_t fetch_bytes = 0;
  int64_t evict_bytes = 0;
  double stall_seconds = 0;
  std::array<double, kNumStallCauses> stall_seconds_by_cause = {};  // Of it, by StallCause.
  int64_t requests_given_up = 0;  // That the server did not answer in time.
  int64_t planned_rounds = 0;  // Steps and evaluation batches that followed their plan to the end.
  std::array<int64_t, kNumDivergences> divergences = {};  // Rounds that left it, by Divergence.
};

class ParameterStore {
 public:
  // Gets the tensor's bytes, pieces in rising order; valid during the call only.
  using Sink =
      absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<const std::byte> bytes)>;
  // Fills all of `bytes`, which go to `offset_bytes` of the tensor.
  using Source = absl::FunctionRef<absl::Status(int64_t offset_bytes, absl::Span<std::byte> bytes)>;

  virtual ~ParameterStore() = default;

  // Updates every parameter that has a gradient. FAILED_PRECONDITION, nothing changed: a gradient
  // holds a NaN or an infinity; names the parameter.
  virtual absl::StatusOr<UpdateResult> Update(const UpdateOptions& options) = 0;
  // Says which moments there are.
  virtual OptimizerKind optimizer() const = 0;

  // Streams kParam, kExpAvg or kExpAvgSq of a parameter. Works after an error of training, too.
  virtual absl::Status Read(absl::string_view name, ChunkKind kind, Sink sink) = 0;
  // Has them written, to load or to resume.
  virtual absl::Status Write(absl::string_view name, ChunkKind kind, Source source) = 0;

  // Updates that the model, and one parameter, have had.
  virtual absl::StatusOr<int64_t> TensorStep(absl::string_view name) const = 0;
  virtual absl::Status SetStep(int64_t step) = 0;
  virtual absl::Status SetTensorStep(absl::string_view name, int64_t step) = 0;

  // What runs between the two is a pass of its own, such as an evaluation, and has its own plan.
  // They nest; use PhaseScope.
  virtual void BeginPhase(absl::string_view /*name*/) {}
  virtual void EndPhase() {}

  // The first error that an operator met in forward or backward: its result is not to be used.
  virtual absl::Status status() const = 0;
  // An operator found no memory, and none runs now: whether there is more than before.
  virtual bool GiveWay() { return false; }
  virtual StoreUsage usage() const = 0;
  virtual void ResetPeaks() = 0;
};

// A phase of the store for as long as this lives.
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
