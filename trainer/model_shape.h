// SPDX-License-Identifier: Apache-2.0
// The dimensions of a Hugging Face model, as the planner wants them. No Torch.
#pragma once
#include "policies/transformer_shape.h"
#include "trainer/hf_config.h"

namespace gemini::trainer {

// The tensors of the shape are those of MakeCausalLm(config), by name, size and order.
policies::TransformerShape ShapeOf(const HfConfig& config);

}  // namespace gemini::trainer
