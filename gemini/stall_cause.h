// SPDX-License-Identifier: Apache-2.0
// Lists the reasons why an operator waits for its chunks, and why a round leaves its plan.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class StallCause : uint8_t {
  kTransfer = 0,  // A planned fetch was in flight or queued, or too many gradients were in flight.
  kUpdate = 1,    // The bundle's update was not committed yet.
  kNvme = 2,      // The chunk was still being read from NVME to HOST.
  kRoom = 3,      // The slot was not vacated yet, or an allocation evicted chunks.
  kOnline = 4,    // Without a plan: the chunk was fetched on demand.
};
inline constexpr int kNumStallCauses = 5;

enum class Divergence : uint8_t {
  kOperator = 0,  // Another operator, or other tensors, than traced.
  kNonModel = 1,  // Non-model data took room that the plan gave to chunks.
  kBudget = 2,    // The budget changed.
  kPinned = 3,    // A chunk that should have left was pinned, by a scoped fetch for example.
  kFailed = 4,    // A planned copy or read failed.
};
inline constexpr int kNumDivergences = 5;

// Returns "transfer", "update", "nvme", "room" or "online".
constexpr absl::string_view StallCauseName(StallCause cause) {
  constexpr std::array<absl::string_view, kNumStallCauses> kNames = {"transfer", "update", "nvme",
                                                                     "room", "online"};
  return kNames[static_cast<int>(cause)];
}
// Returns "operator", "non-model", "budget", "pinned" or "failed".
constexpr absl::string_view DivergenceName(Divergence cause) {
  constexpr std::array<absl::string_view, kNumDivergences> kNames = {"operator", "non-model",
                                                                     "budget", "pinned", "failed"};
  return kNames[static_cast<int>(cause)];
}

}  // namespace gemini
