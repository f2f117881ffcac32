// SPDX-License-Identifier: Apache-2.0
// The dimensions of a model, as the planner wants them. No Torch.
#pragma once
#include "trainer/families/model_spec.h"
#include "trainer/forecast/transformer_shape.h"

namespace gemini::trainer {

// The tensors of the shape are those of a Transformer of this spec, by name, size and order.
policies::TransformerShape ShapeOf(const ModelSpec& spec);

}  // namespace gemini::trainer
