// SPDX-License-Identifier: Apache-2.0
// What a chunk of a bundle holds. All chunks of a bundle share one element layout.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class ChunkKind : uint8_t { kParam = 0, kMaster = 1, kExpAvg = 2, kExpAvgSq = 3, kGrad = 4 };
inline constexpr int kNumChunkKinds = 5;
inline constexpr std::array<ChunkKind, kNumChunkKinds> kAllChunkKinds = {
    ChunkKind::kParam, ChunkKind::kMaster, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq,
    ChunkKind::kGrad};

// Whether chunks of the kind hold a moment of the optimizer; FREE, they stand for zeros.
constexpr bool IsMoment(ChunkKind kind) {
  return kind == ChunkKind::kExpAvg || kind == ChunkKind::kExpAvgSq;
}

// Returns "param", "master", "exp_avg", "exp_avg_sq" or "grad".
constexpr absl::string_view ChunkKindName(ChunkKind kind) {
  constexpr std::array<absl::string_view, kNumChunkKinds> kNames = {"param", "master", "exp_avg",
                                                                    "exp_avg_sq", "grad"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace gemini
