// SPDX-License-Identifier: Apache-2.0
// Defines a stay: one time that a range is on DEVICE, from its fetch until it leaves. A plan is a
// set of stays that repeats every round.
#pragma once
#include <cstdint>

namespace gemini::policies {

inline constexpr int32_t kAlways = -1;

// How a stay ends.
enum class StayEnd : uint8_t {
  kEvicted,  // By an eviction after `last`.
  kStale,    // Without an eviction: `last` is the update's position.
  kStays,    // It is there all the time.
};

struct Stay {
  int32_t range = 0;
  int32_t slot = 0;  // The first of its adjacent slots.
  int32_t needed =
      0;             // Position of the operator that it is fetched for, or kAlways: never fetched.
  int32_t last = 0;  // Last interval of the stay: needed <= last < needed + num_positions.
  StayEnd end = StayEnd::kEvicted;
  bool operator==(const Stay&) const = default;
};

}  // namespace gemini::policies
