// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/batch_context.h"

#include <numbers>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/outer.h"
#include "ATen/ops/pow.h"

namespace gemini::trainer {
namespace {

// Computes as transformers does (modeling_rope_utils.py), in fp32 and in its order of operations:
// at position 8,192 the last bit of a frequency is 5e-4 of an angle. Torch divides a number by a
// tensor as number * (1 / tensor).
float Scaled(const RotarySpec& rotary, float frequency) {
  const auto factor = static_cast<float>(rotary.factor);
  if (rotary.scaling == RotarySpec::Scaling::kNone) return frequency;
  if (rotary.scaling == RotarySpec::Scaling::kLinear) return frequency / factor;
  const auto positions = static_cast<float>(rotary.original_positions);
  const auto low = static_cast<float>(rotary.low_turns);
  const auto high = static_cast<float>(rotary.high_turns);
  const float turn = 1 / frequency * static_cast<float>(2 * std::numbers::pi);  // In positions.
  if (turn > positions / low) return frequency / factor;
  if (turn < positions / high) return frequency;
  const float part = (1 / turn * positions - low) / (high - low);
  return (1 - part) * frequency / factor + part * frequency;
}

}  // namespace

BatchContext MakeRotaryContext(const RotarySpec& rotary, int64_t head_size, int64_t sequence,
                               const torch::TensorOptions& options) {
  const auto on_cpu = torch::dtype(torch::kFloat32);
  const torch::Tensor exponents = at::arange(0, head_size, 2, on_cpu) / head_size;
  torch::Tensor frequencies = at::pow(at::Scalar(rotary.theta), exponents).reciprocal();
  auto* const values = frequencies.mutable_data_ptr<float>();
  for (int64_t i = 0; i < frequencies.numel(); ++i) values[i] = Scaled(rotary, values[i]);

  // Angles in fp32, whatever the hidden state is in: 16 bits cannot tell late positions apart.
  const torch::Tensor positions = at::arange(sequence, on_cpu.device(options.device()));
  const torch::Tensor half = at::outer(positions, frequencies.to(options.device()));
  const torch::Tensor angles = at::cat({half, half}, /*dim=*/-1);
  const auto type = options.dtype().toScalarType();
  return {angles.cos().to(type), angles.sin().to(type)};
}

}  // namespace gemini::trainer
