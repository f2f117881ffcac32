// SPDX-License-Identifier: Apache-2.0
// Translates LibTorch's optimizer options into the updates of a managed model, and writes and reads
// optimizer states in LibTorch's own archives.
// Errors: UNIMPLEMENTED and INVALID_ARGUMENT name the option.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/model/managed_model.h"
#include "torch/optim/optimizer.h"

namespace gemini::client::front {

// Returns the update with these options, every parameter decayed, as LibTorch does it.
// UNIMPLEMENTED: amsgrad, or options of another optimizer. INVALID_ARGUMENT: out of range.
absl::StatusOr<OptimizerSpec> SpecOf(const torch::optim::OptimizerOptions& options);

// Writes what `spec` says into `options`, which are of the same kind.
void SetOptions(const OptimizerSpec& spec, torch::optim::OptimizerOptions& options);

// State of one parameter, as fp32 tensors.
struct ParameterState {
  int64_t step = 0;
  at::Tensor exp_avg;     // Or the momentum buffer; undefined: none.
  at::Tensor exp_avg_sq;  // Undefined: the kind has none.
};

using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// Returns the state as LibTorch's optimizer of the kind has it; null: it has none yet.
std::unique_ptr<torch::optim::OptimizerParamState> ToTorch(OptimizerKind kind,
                                                           const ParameterState& state);
// Returns what ToTorch made, or LibTorch; `state` is one of the kind's.
ParameterState FromTorch(OptimizerKind kind, const torch::optim::OptimizerParamState& state);

// Writes states, groups and options in the format of LibTorch's optimizer of the kind.
void WriteArchive(OptimizerKind kind, torch::serialize::OutputArchive& archive,
                  const torch::optim::Optimizer& optimizer);
// Reads them into the optimizer's state() and its groups' options. Throws what LibTorch throws.
void ReadArchive(OptimizerKind kind, torch::serialize::InputArchive& archive,
                 torch::optim::Optimizer& optimizer);

}  // namespace gemini::client::front
