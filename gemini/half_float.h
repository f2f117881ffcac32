// SPDX-License-Identifier: Apache-2.0
// Converts between the 16-bit floating-point formats, as bit patterns, and fp32. fp16 is IEEE 754
// binary16, with 5 bits of exponent and 10 of fraction. bf16 is the upper half of an fp32 number.
// For bf16 with its low half, which rounds otherwise, see gemini/split_float.h.
// Rounding: to nearest, ties to even, as the processors' own instructions do. A NaN stays a NaN,
// but its payload is not kept.
#pragma once
#include <bit>
#include <cstdint>

namespace gemini {

// Returns the exact value of bf16 bits.
constexpr float FloatOfBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to bf16. Values beyond the largest bf16 by half a unit or more become infinity.
constexpr uint16_t Bf16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Returns the exact value of fp16 bits, denormals too.
constexpr float FloatOfFp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude > 0x7c00) return std::bit_cast<float>(uint32_t{0x7fc00000});
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000);
  if (magnitude < 0x0400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  // The exponent's bias changes from 15 to 127.
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

// Rounds to fp16. Magnitudes of 65520 and more become infinity, those below the smallest normal
// fp16 denormals.
constexpr uint16_t Fp16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7e00;
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // The unit in the last place of this sum is 2^-24, fp16's smallest denormal, so fp32 itself
    // rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rebiased = magnitude - (uint32_t{127 - 15} << 23);
  return static_cast<uint16_t>(sign | ((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13));
}

}  // namespace gemini
