// SPDX-License-Identifier: Apache-2.0
// The state of Torch's generator of a device, from which dropout draws there: what a second run of
// the same forward must begin with to draw the same masks. Thread: any.
#pragma once
#include "torch/types.h"

namespace gemini::trainer {

// Bytes, on the CPU.
torch::Tensor GeneratorState(torch::Device device);
// Throws c10::Error: no state of a generator of that kind of device.
void SetGeneratorState(const torch::Tensor& state, torch::Device device);

}  // namespace gemini::trainer
