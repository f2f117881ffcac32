// SPDX-License-Identifier: Apache-2.0
// The dimensions of a Hugging Face model, as the planner wants them. No Torch.
#pragma once
#include "trainer/checkpoint/hf_config.h"
#include "trainer/forecast/transformer_shape.h"

namespace gemini::trainer {

// The tensors of the shape are those of MakeCausalLm(config), by name, size and order.
policies::TransformerShape ShapeOf(const HfConfig& config);

}  // namespace gemini::trainer
