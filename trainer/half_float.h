// SPDX-License-Identifier: Apache-2.0
// Conversion between fp32 and the two 16-bit formats of checkpoints, a span at a time.
// Exact towards fp32; from fp32 rounded to nearest, ties to even, as Torch does. NaN stays NaN,
// infinities and subnormals are kept, overflow becomes infinity.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace gemini::trainer {

float Float32FromFloat16(uint16_t bits);
float Float32FromBfloat16(uint16_t bits);
uint16_t Float16FromFloat32(float value);
uint16_t Bfloat16FromFloat32(float value);

// Element by element; both spans have the same length.
void ConvertFloat16ToFloat32(absl::Span<const uint16_t> from, absl::Span<float> to);
void ConvertBfloat16ToFloat32(absl::Span<const uint16_t> from, absl::Span<float> to);
void ConvertFloat32ToFloat16(absl::Span<const float> from, absl::Span<uint16_t> to);
void ConvertFloat32ToBfloat16(absl::Span<const float> from, absl::Span<uint16_t> to);

}  // namespace gemini::trainer
