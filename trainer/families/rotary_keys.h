// SPDX-License-Identifier: Apache-2.0
// Reads how a model's heads are rotated: "rope_parameters", as transformers writes it since version
// 5, or "rope_theta" beside "rope_scaling", as files before it have it.
#pragma once
#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// UNIMPLEMENTED in keys.status(): a kind of scaling that we lack; the message lists what we have.
RotarySpec ReadRotary(ConfigKeys& keys);

}  // namespace gemini::trainer
