// SPDX-License-Identifier: Apache-2.0
// Says whether ranks can share the layers of a model, and if not what does not divide, and how many
// ranks could.
// Pure: no Torch, and every rank says the same.
#pragma once
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "policies/mesh/tensor_grid.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Returns why so many parts cannot divide `count` things; nothing if they can.
std::string DoNotDivide(const char* what, int64_t count, int64_t num_parts);
// The same of a vocabulary, of which each part has a row.
std::string LeavesAPartWithoutRows(int64_t vocabulary, int64_t num_parts);

// INVALID_ARGUMENT: `why_not`, which says why so many parts do not fit or nothing if they do, has a
// reason against `parts`. The message has it, and numbers of ranks for the nearest parts, up to
// `most_parts`, that fit. One part does.
absl::Status CheckParts(policies::TensorMode mode, int64_t parts, int64_t most_parts,
                        absl::FunctionRef<std::string(int64_t parts)> why_not,
                        absl::FunctionRef<int64_t(int64_t parts)> ranks_of);

// Checks a grid of 2d, 2.5d or 3d for micro-batches of `batch` sequences; 0 stands for any batch.
// INVALID_ARGUMENT: the model or the batch cannot be divided; the message names what does not
// divide, and sizes that do.
// UNIMPLEMENTED: it has layers that no grid shares; the message names them.
absl::Status CheckTensorGrid(const ModelSpec& spec, const policies::TensorGrid& grid,
                             int64_t batch);

}  // namespace gemini::trainer
