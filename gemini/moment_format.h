// SPDX-License-Identifier: Apache-2.0
// Defines the number formats of an optimizer's moments, and where the codes and scales of 8-bit
// moments lie in the chunk that holds all moments of a bundle. Their meaning is in
// client/kernels/moment_quantisation.h.
// Units: bytes from the chunk's first; elements of the bundle.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "gemini/chunk_kind.h"

namespace gemini {

enum class MomentFormat : uint8_t { kFp32 = 0, k8Bit = 1 };
inline constexpr int kNumMomentFormats = 2;
inline constexpr std::array<absl::string_view, kNumMomentFormats> kMomentFormatNames = {"fp32",
                                                                                        "8bit"};

// Returns the format that has exactly this name, as listed above, and no value for any other text.
constexpr std::optional<MomentFormat> MomentFormatOf(absl::string_view name) {
  for (int i = 0; i < kNumMomentFormats; ++i) {
    if (kMomentFormatNames[i] == name) return static_cast<MomentFormat>(i);
  }
  return std::nullopt;
}

// The number of elements that share a scale. A tensor's blocks begin at its first element.
inline constexpr int64_t kQuantisationBlockElements = 2048;

// The chunk of the 8-bit moments of a bundle of `elements`, which are whole blocks. It has first
// all codes, one byte an element, then all scales, an fp32 a block. Among codes and among scales,
// those of exp_avg precede those of exp_avg_sq.
struct QuantisedMomentsChunk {
  int64_t elements = 0;
  int64_t num_moments = 2;

  // Return where the codes and the scales of one moment begin; `moment` is kExpAvg or kExpAvgSq.
  constexpr int64_t codes_offset(ChunkKind moment) const { return IndexOf(moment) * elements; }
  constexpr int64_t scales_offset(ChunkKind moment) const {
    return num_moments * elements + IndexOf(moment) * ScaleBytes(elements);
  }
  static constexpr int64_t ScaleBytes(int64_t elements) {
    return elements / kQuantisationBlockElements * static_cast<int64_t>(sizeof(float));
  }
  constexpr int64_t size_bytes() const { return num_moments * (elements + ScaleBytes(elements)); }

 private:
  static constexpr int64_t IndexOf(ChunkKind moment) {
    return moment == ChunkKind::kExpAvgSq ? 1 : 0;
  }
};

}  // namespace gemini
