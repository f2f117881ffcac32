// SPDX-License-Identifier: Apache-2.0
// Converts optimizer moments to 8 bits and back. Each element has a code. Each block of a tensor
// (kQuantisationBlockElements) has an fp32 scale, the value of the largest magnitude. An element's
// value is CodeValues[code] * scale.
// Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv:2110.02861):
// blocks of section 2.1, dynamic tree quantisation of section 1.3, its unsigned form of section
// 2.2.
// Codes: in the order of their values. The decade [10^-(k+1), 10^-k] is cut into equal parts, whose
// middles are the values: 2^(6-k) parts signed, mirrored below zero, 2^(7-k) unsigned, k from 0 to
// 6. The values 0 and 1 are added. So each decade further from 1 has one bit of fraction less, and
// the exponent one more.
// Bits: x = value / scale, rounded to fp32. The code is the one whose value is nearest to x, and
// the lower one of two equally near ones. Below the lowest value it is the lowest code. The result
// is the same on all machines.
// NaN: a block with a NaN or an infinity gets the scale NaN, and so only NaNs, so that none is
// hidden.
// Differs from the paper: a scale has the sign of its value (plus if two opposite values are the
// largest), because 1 is the value of a code and -1 is not. So the largest value keeps its bits,
// and dequantised values become the same codes and scales again, unless they are denormal.
// Differs from the paper: an exp_avg_sq above 0 never becomes 0, but the lowest code above it,
// 3.25e-7 of the block's largest. As 0 it would make the next update of that element up to a
// thousand times too large; as it is, the update is too small.
// Thread: any.
#pragma once
#include <array>
#include <cstdint>

#include "gemini/moment_format.h"

namespace gemini::client {

enum class MomentCode : uint8_t { kSigned = 0, kUnsigned = 1 };  // exp_avg; exp_avg_sq.

// The values of the 256 codes, ascending, in [-1, 1] or [0, 1].
const std::array<float, 256>& CodeValues(MomentCode code);

// Stochastic rounding chooses which of its two neighbours a value becomes: the upper one with the
// probability that makes the mean right. Random numbers depend on a counter and not on the order in
// which they are drawn. They are those of Philox4x32-10 (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011) with the seed as key and (element, step, code) as counter. Tensors
// need seeds of their own.
struct StochasticRounding {
  uint64_t seed = 0;
  int64_t step = 0;
};

// Writes the values of `count` elements that begin at a block: one code for each element, and a
// scale for each block. Null `codes` stand for zeros.
void DequantiseMoment(MomentCode code, const uint8_t* codes, const float* scales, int64_t count,
                      float* values);

// Writes codes and scales of `count` values that begin at a block, the tensor's element
// `first_element`. If `stochastic` is null, rounds to nearest.
void QuantiseMoment(MomentCode code, const float* values, int64_t first_element, int64_t count,
                    const StochasticRounding* stochastic, uint8_t* codes, float* scales);

}  // namespace gemini::client
