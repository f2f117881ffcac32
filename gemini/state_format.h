// SPDX-License-Identifier: Apache-2.0
// How the state of a space's trainable elements is kept, and in which chunks of their bundle. Each has an
// fp32 value whatever the format: a 16-bit parameter has a master that gives it.
//   fp32: param (fp32), exp_avg, exp_avg_sq, grad: 4 chunks, 16 bytes an element.
//   bf16: param (high half of the fp32 value), master (low half: gemini/split_float.h), the fp32 moments in
//         two chunks each, grad (bf16): 7 chunks of 2 bytes an element: 14.
//   fp16: param (master rounded to nearest even), master (fp32, two chunks), moments as bf16, grad (fp16): 16.
// Units:  element i of a bundle lies at byte i * ElementBytes(element) of its param and grad chunks. Of a
//         state in two chunks, the first has the lower half of the bundle's elements.
#pragma once
#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "gemini/chunk_kind.h"
#include "gemini/element_type.h"

namespace gemini {

struct StateFormat {
  ElementType element = ElementType::kFp32;  // Of parameters and gradients.
  bool operator==(const StateFormat&) const = default;
};

namespace internal_state_format {
using enum ChunkKind;
// Parameter, then moments: what an update changes. Behind them the gradient.
inline constexpr std::array<ChunkKind, 4> kFp32Chunks = {kParam, kExpAvg, kExpAvgSq, kGrad};
inline constexpr std::array<ChunkKind, 7> kBf16Chunks = {
    kParam, kMaster, kExpAvg, kExpAvgUpper, kExpAvgSq, kExpAvgSqUpper, kGrad};
inline constexpr std::array<ChunkKind, 8> kFp16Chunks = {
    kParam, kMaster, kMasterUpper, kExpAvg, kExpAvgUpper, kExpAvgSq, kExpAvgSqUpper, kGrad};
}  // namespace internal_state_format

// The chunks of a trainable bundle. The gradient's is the last.
constexpr absl::Span<const ChunkKind> TrainableKinds(const StateFormat& format) {
  switch (format.element) {
    case ElementType::kFp32:
      return internal_state_format::kFp32Chunks;
    case ElementType::kBf16:
      return internal_state_format::kBf16Chunks;
    case ElementType::kFp16:
      return internal_state_format::kFp16Chunks;
  }
  return {};
}

// Those of them that an update changes: all but the gradient's.
constexpr absl::Span<const ChunkKind> UpdatedKinds(const StateFormat& format) {
  const absl::Span<const ChunkKind> kinds = TrainableKinds(format);
  return kinds.first(kinds.size() - 1);
}

// The chunks that together hold the fp32 values of kParam, kExpAvg or kExpAvgSq, or gradients.
constexpr absl::Span<const ChunkKind> KindsOfValue(const StateFormat& format, ChunkKind value) {
  const absl::Span<const ChunkKind> kinds = TrainableKinds(format);
  size_t first = 0;
  while (kinds[first] != value) ++first;
  size_t end = first + 1;
  const auto begins_value = [](ChunkKind kind) {
    return kind == ChunkKind::kParam || kind == ChunkKind::kExpAvg ||
           kind == ChunkKind::kExpAvgSq || kind == ChunkKind::kGrad;
  };
  while (end < kinds.size() && !begins_value(kinds[end])) ++end;
  return kinds.subspan(first, end - first);
}

}  // namespace gemini
