// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/residency_shm.h"

#include <algorithm>

namespace gemini {
namespace {

constexpr int kTierShift = 2;
constexpr int kDirtyShift = 4;
constexpr int kPinsShift = 12;
constexpr int kSlotShift = 24;
constexpr uint64_t kPinsMask = 0xfff;
constexpr uint64_t kZeroMask = uint64_t{0x7f} << 5;

}  // namespace

uint64_t PackResidency(const ChunkResidency& residency) {
  if (residency.state == ChunkState::kFree) return 0;
  return static_cast<uint64_t>(residency.state) |
         static_cast<uint64_t>(residency.tier) << kTierShift |
         uint64_t{residency.dirty} << kDirtyShift |
         std::min<uint64_t>(residency.pins, kPinsMask) << kPinsShift |
         static_cast<uint64_t>(residency.slot.value()) << kSlotShift;
}

absl::StatusOr<ChunkResidency> UnpackResidency(uint64_t word, const TierMap<int64_t>& slots) {
  const std::optional<ChunkResidency> residency = TryUnpackResidency(word, slots);
  if (residency.has_value()) return *residency;
  return absl::InvalidArgumentError(
      "a residency word with an unknown state, tier or bit, or whose fields contradict each other");
}

std::optional<ChunkResidency> TryUnpackResidency(uint64_t word, const TierMap<int64_t>& slots) {
  if (word == 0) return ChunkResidency{};
  const uint64_t state = word & 3;
  const uint64_t tier = word >> kTierShift & 3;
  if (state == 0 || state > 2 || tier >= kNumTiers || (word & kZeroMask) != 0) {
    return std::nullopt;
  }
  ChunkResidency residency = {
      .state = static_cast<ChunkState>(state),
      .tier = static_cast<Tier>(tier),
      .dirty = (word >> kDirtyShift & 1) != 0,
      .pins = static_cast<int>(word >> kPinsShift & kPinsMask),
      .slot = SlotId(static_cast<int64_t>(word >> kSlotShift)),
  };
  const bool compute = residency.state == ChunkState::kCompute;
  if (compute != (residency.pins > 0) || (compute && residency.tier != Tier::kDevice) ||
      (residency.dirty && residency.tier != Tier::kDevice) ||
      residency.slot.value() >= slots[residency.tier]) {
    return std::nullopt;
  }
  return residency;
}

}  // namespace gemini
