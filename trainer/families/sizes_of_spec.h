// SPDX-License-Identifier: Apache-2.0
// Derives the sizes of a model's matrices from its spec, for what follows from them alone: how long
// parts of it take beside each other, and forecasts for many ranks.
// Pure: no I/O, no clock.
#pragma once
#include <cstdint>

#include "policies/scaling/model_sizes.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Returns how ranks can share a model that learns its task. The trainer refuses what this leaves
// out (trainer/parallel/model_of_ranks.h).
policies::SharingWays SharingWaysOf(const ModelSpec& spec);

// Returns the sizes of a model that learns from sequences of so many tokens, which say how many a
// token attends to. Its ways of sharing are those that these sizes can foretell.
policies::ModelSizes SizesOf(const ModelSpec& spec, int64_t sequence);

}  // namespace gemini::trainer
