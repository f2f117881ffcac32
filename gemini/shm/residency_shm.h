// SPDX-License-Identifier: Apache-2.0
// Defines the residency word, which says where one chunk is, for the server's accounting and
// memstat. Recovery never reads it.
// Writer: the space's client, one relaxed store a change. Readers copy the word once, then
//         validate.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "gemini/chunk_state.h"
#include "gemini/ids.h"
#include "gemini/tier.h"

namespace gemini {

struct ChunkResidency {
  ChunkState state = ChunkState::kFree;
  Tier tier = Tier::kHost;  // Tier of the newest copy; without meaning while FREE.
  bool dirty = false;       // The newest copy is on DEVICE and not written back.
  int pins = 0;             // 0 to 4,095, and 4,095 for more; above 0 exactly in COMPUTE.
  SlotId slot{0};           // In `tier`; below 2^40.
  bool operator==(const ChunkResidency&) const = default;
};

// Bits: state 2 | tier 2 | dirty 1 | zero 7 | pins 12 | slot 40 (from bit 0 upwards). FREE is 0.
uint64_t PackResidency(const ChunkResidency& residency);

// INVALID_ARGUMENT: a state, tier or combination that no honest writer makes (COMPUTE off DEVICE,
// pins without COMPUTE, a slot past slots[tier], a bit set that must be zero).
absl::StatusOr<ChunkResidency> UnpackResidency(uint64_t word, const TierMap<int64_t>& slots);
// Returns no value instead of an error and allocates nothing, for readers of many words of a peer.
std::optional<ChunkResidency> TryUnpackResidency(uint64_t word, const TierMap<int64_t>& slots);

}  // namespace gemini
