// SPDX-License-Identifier: Apache-2.0
// Splits an fp32 value in two halves: a bf16 number that models compute with, and a signed 16-bit
// low half that completes it to the fp32 value. A master copy so costs 2 bytes an element instead
// of 4.
//   high = (bits + 0x8000) >> 16: the value rounded to bf16, half away from zero
//   low  = bits - (high << 16), from -0x8000 to 0x7fff; both modulo their width
// Exact: every value but NaN is restored with all bits, -0, denormals and infinity too. With ties
// to even, as bf16 usually rounds, a low half of +0x8000 would not fit.
// NaN: becomes kSplitNaN, so that its high half is a NaN too. The high half of 0x7f800001 would be
// infinity, and that of 0x7fffffff would be -0.
// Large: a finite value above the largest bf16 by half a unit, 3.3961776e38, has infinity as its
// high half, but the pair still gives the finite value.
// Source: Split-SGD-BF16 (Kalamkar et al., arXiv:2005.04680), which truncates the high half instead
// of rounding it.
#pragma once
#include <bit>
#include <cstdint>

namespace gemini {

struct SplitFloat {
  uint16_t high = 0;  // The bits of a bf16 number.
  int16_t low = 0;
  bool operator==(const SplitFloat&) const = default;
};

// The bits of every NaN after a split: quiet, positive, without payload.
inline constexpr uint32_t kSplitNaN = 0x7fc00000;

constexpr SplitFloat SplitOf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t kept = (bits & 0x7fffffff) > 0x7f800000 ? kSplitNaN : bits;
  return {static_cast<uint16_t>((kept + 0x8000) >> 16),
          static_cast<int16_t>(static_cast<uint16_t>(kept & 0xffff))};
}

constexpr float JoinOf(SplitFloat split) {
  const uint32_t high = static_cast<uint32_t>(split.high) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(int32_t{split.low}));
}

}  // namespace gemini
