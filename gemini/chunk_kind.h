// SPDX-License-Identifier: Apache-2.0
// Defines what a chunk of a bundle holds. All chunks of a bundle have one size and belong to the
// same elements. A state that takes more bytes an element than the parameter, such as an fp32
// moment of a bf16 parameter, fills two chunks: the kind of its name for the lower half of the
// bundle's elements, and an upper one (gemini/state_format.h).
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class ChunkKind : uint8_t {
  kParam = 0,
  kMaster = 1,
  kExpAvg = 2,
  kExpAvgSq = 3,
  kGrad = 4,
  kMasterUpper = 5,
  kExpAvgUpper = 6,
  kExpAvgSqUpper = 7,
};
inline constexpr int kNumChunkKinds = 8;
inline constexpr std::array<ChunkKind, kNumChunkKinds> kAllChunkKinds = {
    ChunkKind::kParam, ChunkKind::kMaster,      ChunkKind::kExpAvg,      ChunkKind::kExpAvgSq,
    ChunkKind::kGrad,  ChunkKind::kMasterUpper, ChunkKind::kExpAvgUpper, ChunkKind::kExpAvgSqUpper};

// Holds one value for each kind.
template <typename T>
struct KindMap {
  std::array<T, kNumChunkKinds> values = {};
  T& operator[](ChunkKind kind) { return values[static_cast<int>(kind)]; }
  const T& operator[](ChunkKind kind) const { return values[static_cast<int>(kind)]; }
  bool operator==(const KindMap&) const = default;
};

// Returns whether chunks of the kind hold a moment of the optimizer. While FREE, they stand for
// zeros.
constexpr bool IsMoment(ChunkKind kind) {
  return kind == ChunkKind::kExpAvg || kind == ChunkKind::kExpAvgSq ||
         kind == ChunkKind::kExpAvgUpper || kind == ChunkKind::kExpAvgSqUpper;
}

// Returns the kind's name as memstat shows it: "param", "exp_avg_upper".
constexpr absl::string_view ChunkKindName(ChunkKind kind) {
  constexpr std::array<absl::string_view, kNumChunkKinds> kNames = {
      "param", "master",       "exp_avg",       "exp_avg_sq",
      "grad",  "master_upper", "exp_avg_upper", "exp_avg_sq_upper"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace gemini
