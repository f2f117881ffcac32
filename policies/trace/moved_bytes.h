// SPDX-License-Identifier: Apache-2.0
// What placement moves without a plan, and the least that any plan moves: what plans are compared
// with.
// Units: bytes a round, in steady state. Errors: RESOURCE_EXHAUSTED as SlotsAtPositions.
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

// Of least-recently-used replacement on demand. Ranges leave when their room is needed; slots need
// not be adjacent. The mean of several rounds, as its state may not repeat after one.
absl::StatusOr<MovedBytes> SimulateLru(const RangeTrace& trace, int64_t device_bytes);

// The fewest that any placement moves with all updates in HOST: chunk by chunk, so that a spanning
// tensor may be there in part and slots need not be adjacent. In each direction not above what any
// such plan moves. It says nothing of plans that update on DEVICE: they may fetch less, down to
// nothing where parameters and moments stay, and push out more.
absl::StatusOr<MovedBytes> FewestBytes(const RangeTrace& trace, int64_t device_bytes);

}  // namespace gemini::policies
