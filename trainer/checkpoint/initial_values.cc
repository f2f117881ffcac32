// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/initial_values.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace gemini::trainer {
namespace {

// Returns 64 bits for place `index` of the stream that starts at `seed`.
uint64_t SplitMix(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Above 0 and at most 1.
double Uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1) * 0x1p-53; }

}  // namespace

void FillNormal(uint64_t seed, double deviation, int64_t first, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t place = 2 * (static_cast<uint64_t>(first) + i);
    const double radius = std::sqrt(-2 * std::log(Uniform(SplitMix(seed, place))));
    const double angle = 2 * std::numbers::pi * Uniform(SplitMix(seed, place + 1));
    values[i] = static_cast<float>(deviation * radius * std::cos(angle));
  }
}

}  // namespace gemini::trainer
