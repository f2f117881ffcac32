// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point formats as bit patterns, and their fp32 values. fp16: IEEE 754
// binary16, 5 bits of exponent and 10 of fraction. bf16: the upper half of an fp32 number.
// Rounding: to nearest, ties to even, as the processors' own instructions do. A NaN stays a NaN,
//           its payload is not kept. For bf16 with its low half see gemini/split_float.h, which
//           rounds otherwise.
#pragma once
#include <bit>
#include <cstdint>

namespace gemini {

// The value of bf16 bits, exact.
constexpr float FloatOfBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Beyond the largest bf16 by half a unit or more: infinity.
constexpr uint16_t Bf16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The value of fp16 bits, exact, denormals too.
constexpr float FloatOfFp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude > 0x7c00) return std::bit_cast<float>(uint32_t{0x7fc00000});
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000);
  if (magnitude < 0x0400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  // From a bias of 15 to one of 127.
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

// 65520 and more in magnitude: infinity. Below the smallest normal: fp16 denormals.
constexpr uint16_t Fp16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7e00;
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // The sum has a unit in the last place of 2^-24, fp16's smallest denormal: fp32 itself rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rebiased = magnitude - (uint32_t{127 - 15} << 23);
  return static_cast<uint16_t>(sign | ((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13));
}

}  // namespace gemini
