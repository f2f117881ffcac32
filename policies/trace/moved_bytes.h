// SPDX-License-Identifier: Apache-2.0
// Computes how many bytes placement moves without a plan, and the least that any plan moves. Plans
// are compared with these.
// Units: bytes a round, in steady state.
// Errors: RESOURCE_EXHAUSTED as SlotsAtPositions.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

struct MovedBytes {
  int64_t fetch_bytes = 0;  // To DEVICE.
  int64_t evict_bytes = 0;  // From DEVICE: write-backs and gradients.
  bool operator==(const MovedBytes&) const = default;
};

// Returns what least-recently-used replacement on demand moves. Ranges leave when their room is
// needed, and slots need not be adjacent. It is the mean of several rounds, because the state may
// not repeat after one.
absl::StatusOr<MovedBytes> SimulateLru(const RangeTrace& trace, int64_t device_bytes);

// Returns a lower bound, in each direction, of what any placement with all updates in HOST moves.
// It counts chunk by chunk: a spanning tensor may be there in part, and slots need not be adjacent.
// It does not bound plans that update on DEVICE. They may fetch less, down to nothing where
// parameters and moments stay, and evict more.
absl::StatusOr<MovedBytes> FewestBytes(const RangeTrace& trace, int64_t device_bytes);

}  // namespace gemini::policies
