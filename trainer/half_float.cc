// SPDX-License-Identifier: Apache-2.0
#include "trainer/half_float.h"

#include <bit>

#include "gemini/check.h"

namespace gemini::trainer {
namespace {

template <typename From, typename To, typename Function>
void ConvertEach(absl::Span<const From> from, absl::Span<To> to, Function convert) {
  GEMINI_CHECK(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = convert(from[i]);
}

}  // namespace

float Float32FromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    // Zero or subnormal: a multiple of 2^-24, which fp32 holds exactly.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

float Float32FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t Float16FromFloat32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // Quiet NaN.
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // From 65520 on, half way above the largest number, all rounds to infinity.
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14, subnormal: fp32 numbers in [0.5, 1) are 2^-24 apart, so the sum rounds as
    // needed.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5f);
  } else {
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    half = (magnitude - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

uint16_t Bfloat16FromFloat32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void ConvertFloat16ToFloat32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach(from, to, Float32FromFloat16);
}
void ConvertBfloat16ToFloat32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach(from, to, Float32FromBfloat16);
}
void ConvertFloat32ToFloat16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach(from, to, Float16FromFloat32);
}
void ConvertFloat32ToBfloat16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach(from, to, Bfloat16FromFloat32);
}

}  // namespace gemini::trainer
