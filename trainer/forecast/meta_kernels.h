// SPDX-License-Identifier: Apache-2.0
// Gives the meta device the operators that a training step needs and that Torch 2.11 has in Python
// alone. Like those that Torch has, they make tensors of the sizes and types of a CPU's results.
#pragma once

namespace gemini::trainer {

// Registers them in this process, once. Any thread; before the first step on the meta device.
void RegisterMetaKernels();

}  // namespace gemini::trainer
