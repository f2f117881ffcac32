// SPDX-License-Identifier: Apache-2.0
// The dimensions of a model, as the planner wants them. No Torch.
#pragma once
#include "absl/status/statusor.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/transformer_shape.h"

namespace gemini::trainer {

// Returns the shape of GPT-2 or OPT, which have a table of positions. Its tensors are those of the
// Transformer, by name, size and order. UNIMPLEMENTED: another family.
absl::StatusOr<policies::TransformerShape> ShapeOf(const ModelSpec& spec);

}  // namespace gemini::trainer
