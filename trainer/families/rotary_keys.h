// SPDX-License-Identifier: Apache-2.0
// Reads how a model's heads are rotated: "rope_parameters", as transformers writes it since version
// 5, or "rope_theta" beside "rope_scaling", as files before it have it.
#pragma once
#include <cstdint>

#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Returns how heads are rotated. `max_sequence` is the model's number of positions. keys.status()
// is UNIMPLEMENTED for a kind of scaling that we lack, with those we have, and INVALID_ARGUMENT
// where a key that the kind needs is missing.
RotarySpec ReadRotary(ConfigKeys& keys, int64_t max_sequence);

}  // namespace gemini::trainer
