// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/generator_state.h"

#include <mutex>

#include "ATen/Context.h"

namespace gemini::trainer {

torch::Tensor GeneratorState(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetGeneratorState(const torch::Tensor& state, torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace gemini::trainer
