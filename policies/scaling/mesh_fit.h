// SPDX-License-Identifier: Apache-2.0
// Says whether a model and its micro-batches divide among ranks in the ways that a forecast is
// asked about, by sizes alone. The trainer looks at more (trainer/parallel/model_of_ranks.h).
// Pure.
#pragma once
#include "absl/status/status.h"
#include "policies/scaling/model_sizes.h"
#include "policies/scaling/parallel_run.h"

namespace gemini::policies {

// INVALID_ARGUMENT: something does not divide, or two ways do not go together; the message has the
// numbers. UNIMPLEMENTED: such a model is not foretold in this way; the message names it.
absl::Status CheckMeshFits(const ModelSizes& model, const ParallelRun& run);

}  // namespace gemini::policies
