// SPDX-License-Identifier: Apache-2.0
// What families with experts share.
#pragma once
#include <initializer_list>

#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Reads how many experts there are, by the first of `count_keys` that is there, and how many a
// token goes through, into spec.experts, which holds what keys mean that are left out.
// keys.status() is UNIMPLEMENTED where the loss is to include the router's.
void ReadExpertKeys(ConfigKeys& keys, ModelSpec& spec,
                    std::initializer_list<const char*> count_keys);

// Reads which blocks have experts: every n-th, but those listed.
void ReadExpertBlocks(ConfigKeys& keys, ModelSpec& spec);

}  // namespace gemini::trainer
