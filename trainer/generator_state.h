// SPDX-License-Identifier: Apache-2.0
// The state of Torch's CPU generator, from which dropout draws: what a second run of the same forward
// must begin with to draw the same masks. Thread: any.
#pragma once
#include "torch/types.h"

namespace gemini::trainer {

torch::Tensor GeneratorState();
void SetGeneratorState(const torch::Tensor& state);

}  // namespace gemini::trainer
