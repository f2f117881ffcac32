// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/generator_state.h"

#include <mutex>

#include "ATen/Context.h"
#include "ATen/ops/empty_like.h"

namespace gemini::trainer {

torch::Tensor GeneratorState(torch::Device device) {
  // Nothing is drawn there. What a CPU's state takes is taken.
  if (device.is_meta()) return at::empty_like(GeneratorState(torch::kCPU), device);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetGeneratorState(const torch::Tensor& state, torch::Device device) {
  if (device.is_meta()) return;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace gemini::trainer
