// SPDX-License-Identifier: Apache-2.0
// Reads how a model's heads are rotated: "rope_parameters", as transformers writes it since version
// 5, or "rope_theta" beside "rope_scaling", as files before it have it.
// Errors: keys.status() is UNIMPLEMENTED for a kind of scaling that we lack, with those we have,
//         and INVALID_ARGUMENT where a key that the kind needs is missing.
#pragma once
#include <cstdint>

#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// What a family's config.json says of rotation at the top level.
struct TopLevelRotary {
  const char* theta = "rope_theta";
  // The key of RotarySpec::rotated_fraction. Null: the family's model rotates whole heads alone.
  const char* fraction = nullptr;
  // The default of "original_max_position_embeddings" there, which goes before what the object
  // says. 0: it has no default, and if it is left out, the object's value counts.
  int64_t original_positions = 0;
  bool only_longrope = false;  // The family's model knows no other scaling.
};

// Sets how heads are rotated in all kinds of blocks. `rotary` is what keys that are left out mean.
void ReadRotary(ConfigKeys& keys, ModelSpec& spec, RotarySpec rotary,
                const TopLevelRotary& top = {});

// Sets it for each of the two kinds: blocks that see all, and those that see a window. Only the
// former have "rope_theta" and "rope_scaling".
void ReadRotaryOfKinds(ConfigKeys& keys, ModelSpec& spec, RotarySpec full, RotarySpec windowed);

}  // namespace gemini::trainer
