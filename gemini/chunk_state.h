// SPDX-License-Identifier: Apache-2.0
// Defines the states of a chunk and the changes between them.
// Source: the chunk states of PatrickStar (Fang et al., arXiv:2108.05818), with NVME added.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class ChunkState : uint8_t {
  kFree = 0,     // No payload.
  kHold = 1,     // Payload somewhere, movable.
  kCompute = 2,  // On DEVICE, pinned by an operator, not movable.
};

constexpr absl::string_view ChunkStateName(ChunkState state) {
  constexpr std::array<absl::string_view, 3> kNames = {"FREE", "HOLD", "COMPUTE"};
  return kNames[static_cast<int>(state)];
}

// Returns whether the change is one of FREE to HOLD, HOLD to COMPUTE, COMPUTE to HOLD, HOLD to
// FREE, or HOLD to HOLD (a move to another tier).
constexpr bool IsLegalChange(ChunkState from, ChunkState to) {
  return from == ChunkState::kHold ||
         (to == ChunkState::kHold && (from == ChunkState::kFree || from == ChunkState::kCompute));
}

}  // namespace gemini
