// SPDX-License-Identifier: Apache-2.0
#include "trainer/generator_state.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"

namespace gemini::trainer {

torch::Tensor GeneratorState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetGeneratorState(const torch::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace gemini::trainer
