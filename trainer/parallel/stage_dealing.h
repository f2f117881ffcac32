// SPDX-License-Identifier: Apache-2.0
// Deals the blocks of a model to the stages of a pipeline, so that all stages take about as long,
// with the head in the last one. How long a part takes is predicted by its multiplications alone.
// Pure: every rank deals alike and asks nobody.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/model_stages.h"

namespace gemini::trainer {

struct PipelineSize {
  int64_t ranks = 1;
  int64_t chunks = 1;  // Of each rank.
};

// Returns the stages of a model that learns from sequences of so many tokens. `split` says how many
// blocks each has, as in "5,7", or is empty. INVALID_ARGUMENT: there are more stages than blocks,
// or the split is none of this model; the message has the numbers.
absl::StatusOr<ModelStages> DealStages(const ModelSpec& spec, int64_t sequence,
                                       const PipelineSize& size, absl::string_view split);

}  // namespace gemini::trainer
