// SPDX-License-Identifier: Apache-2.0
// The state of Torch's generator of a device, from which dropout draws there. A second run of the
// same forward must begin with it to draw the same masks.
// Thread: any.
#pragma once
#include "torch/types.h"

namespace gemini::trainer {

// Returns the state as bytes, on the CPU. The meta device draws nothing: its state is a tensor on
// it, as large as that of the CPU, and setting it does nothing.
torch::Tensor GeneratorState(torch::Device device);
// Sets it. Throws c10::Error if it is no state of a generator of that kind of device.
void SetGeneratorState(const torch::Tensor& state, torch::Device device);

// Goes back to the state of now at its end.
class GeneratorGuard {
 public:
  explicit GeneratorGuard(torch::Device device) : device_(device), state_(GeneratorState(device)) {}
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;
  ~GeneratorGuard() { SetGeneratorState(state_, device_); }

 private:
  const torch::Device device_;
  const torch::Tensor state_;
};

}  // namespace gemini::trainer
