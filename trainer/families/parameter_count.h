// SPDX-License-Identifier: Apache-2.0
// Counts the parameters of a model by its spec alone.
// Pure: no I/O, no clock.
#pragma once
#include <cstdint>

#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Returns the number of elements of all parameters that trainer/models/transformer.h makes of the
// spec, at most 2^63 - 1. A tied head has none of its own.
int64_t NumParameters(const ModelSpec& spec);

}  // namespace gemini::trainer
