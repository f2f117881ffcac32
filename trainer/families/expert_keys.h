// SPDX-License-Identifier: Apache-2.0
// Reads the keys of config.json that families with experts share.
#pragma once
#include <initializer_list>

#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Reads how many experts there are, by the first of `count_keys` that is there, how many a token
// goes through, and whether the loss includes the routers', into spec.experts, which holds what
// keys mean that are left out.
void ReadExpertKeys(ConfigKeys& keys, ModelSpec& spec,
                    std::initializer_list<const char*> count_keys);

// Reads which blocks have experts: every n-th, but those listed.
void ReadExpertBlocks(ConfigKeys& keys, ModelSpec& spec);

}  // namespace gemini::trainer
