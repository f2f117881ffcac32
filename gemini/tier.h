// SPDX-License-Identifier: Apache-2.0
// Lists the three tiers, the places where a chunk's bytes may lie.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class Tier : uint8_t {
  kDevice = 0,  // GPU memory; without a GPU, a budgeted host arena that plays its part.
  kHost = 1,    // Memory of the node; pinned where there is CUDA.
  kNvme = 2,
};
inline constexpr int kNumTiers = 3;
inline constexpr std::array<Tier, kNumTiers> kAllTiers = {Tier::kDevice, Tier::kHost, Tier::kNvme};

// Returns "DEVICE", "HOST" or "NVME".
constexpr absl::string_view TierName(Tier tier) {
  constexpr std::array<absl::string_view, kNumTiers> kNames = {"DEVICE", "HOST", "NVME"};
  return kNames[static_cast<int>(tier)];
}

// Holds one value for each tier.
template <typename T>
struct TierMap {
  std::array<T, kNumTiers> values = {};
  T& operator[](Tier tier) { return values[static_cast<int>(tier)]; }
  const T& operator[](Tier tier) const { return values[static_cast<int>(tier)]; }
  bool operator==(const TierMap&) const = default;
};

}  // namespace gemini
