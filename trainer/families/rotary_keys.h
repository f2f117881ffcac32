// SPDX-License-Identifier: Apache-2.0
// Reads how a model's heads are rotated: "rope_parameters", as transformers writes it since version
// 5, or "rope_theta" beside "rope_scaling", as files before it have it.
// Errors: keys.status() is UNIMPLEMENTED for a kind of scaling that we lack, with those we have,
//         and INVALID_ARGUMENT where a key that the kind needs is missing.
#pragma once
#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Sets how heads are rotated in all kinds of blocks. `rotary` is what keys that are left out mean.
void ReadRotary(ConfigKeys& keys, ModelSpec& spec, RotarySpec rotary);

// Sets it for each of the two kinds: blocks that see all, and those that see a window. Only the
// former have "rope_theta" and "rope_scaling".
void ReadRotaryOfKinds(ConfigKeys& keys, ModelSpec& spec, RotarySpec full, RotarySpec windowed);

}  // namespace gemini::trainer
