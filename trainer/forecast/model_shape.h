// SPDX-License-Identifier: Apache-2.0
// The dimensions of a model, as the planner wants them. No Torch.
#pragma once
#include "trainer/families/model_spec.h"
#include "trainer/forecast/transformer_shape.h"

namespace gemini::trainer {

// Returns the shape of a spec of GPT-2 or OPT. Its tensors are those of the Transformer, by name,
// size and order. Other families it does not know yet: names and layout are GPT-2's where query,
// key and value are one matrix, and OPT's otherwise, whatever the spec says.
policies::TransformerShape ShapeOf(const ModelSpec& spec);

}  // namespace gemini::trainer
