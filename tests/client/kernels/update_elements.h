// SPDX-License-Identifier: Apache-2.0
// Values that updates are tested with.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gemini::client {

// The bits of one element's fp32 values, before its formats round them.
struct ElementBits {
  uint32_t param, grad, exp_avg, exp_avg_sq;
};

// Gradients over many magnitudes, denormal squares included.
inline std::vector<ElementBits> RandomElements(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<ElementBits> values;
  for (int64_t i = 0; i < count; ++i) {
    const float root = normal(random) * 0.1f;
    const float grad = normal(random) * std::pow(10.0f, static_cast<float>(random() % 25) - 22.0f);
    values.push_back({std::bit_cast<uint32_t>(normal(random)), std::bit_cast<uint32_t>(grad),
                      std::bit_cast<uint32_t>(normal(random) * 0.1f),
                      std::bit_cast<uint32_t>(root * root)});
  }
  return values;
}

// Every combination of values at the borders of the formats; NaNs of all kinds among them.
inline std::vector<ElementBits> SpecialElements() {
  static constexpr uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff,
                                          0x00800000, 0x3f800000, 0xbf808000, 0x7f7fffff,
                                          0xff7f8000, 0x7f800000, 0xff800000, 0x7fc00000,
                                          0x7f800001, 0xffffffff, 0x1e3ce508, 0x477fefff};
  std::vector<ElementBits> values;
  for (const uint32_t param : kSpecial) {
    for (const uint32_t grad : kSpecial) {
      for (const uint32_t exp_avg : kSpecial) {
        for (const uint32_t exp_avg_sq : kSpecial) {
          values.push_back({param, grad, exp_avg, exp_avg_sq});
        }
      }
    }
  }
  return values;
}

}  // namespace gemini::client
