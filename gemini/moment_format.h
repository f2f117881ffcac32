// SPDX-License-Identifier: Apache-2.0
// The number formats of an optimizer's moments, and where the codes and scales of 8-bit ones lie in
// the chunk that holds all moments of a bundle: client/kernels/moment_quantisation.h says what they
// mean.
// Units:  bytes from the chunk's first; elements of the bundle.
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

// The format of that name, exactly as above; none for any other text.
constexpr std::optional<MomentFormat> MomentFormatOf(absl::string_view name) {
  for (int i = 0; i < kNumMomentFormats; ++i) {
    if (kMomentFormatNames[i] == name) return static_cast<MomentFormat>(i);
  }
  return std::nullopt;
}

// Elements that have one scale. A tensor's blocks begin at its first element.
inline constexpr int64_t kQuantisationBlockElements = 2048;

// The chunk of the 8-bit moments of a bundle of `elements`, whole blocks: all codes, a byte an
// element, then all scales, an fp32 a block; of each, those of exp_avg come first.
struct QuantisedMomentsChunk {
  int64_t elements = 0;
  int64_t num_moments = 2;

  // Of the codes and the scales of one moment; kExpAvg or kExpAvgSq.
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
