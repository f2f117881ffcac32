// SPDX-License-Identifier: Apache-2.0
// When each range is used next, and how many slots each interval leaves to chunks: what replacement
// by the farthest next use looks up.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Positions of the round, or this: not used again before it is stale, or before the round ends.
inline constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

struct NextUses {
  explicit NextUses(const RangeTrace& trace);
  std::vector<int32_t> next;   // By use: position of the range's next one in the round, or kNever.
  std::vector<int32_t> first;  // By range: of its first in the round, or kNever.
  // By range: its copy on DEVICE does not outlive the update. True of parameters that are updated
  // in HOST and of their gradients, which are there by then unless they are late.
  std::vector<bool> ends_at_update;
  // By range: gradients that are kept until the update. They leave after that, and come back blank.
  std::vector<bool> comes_blank;
};

// Slots for chunks in each interval: what non-model data leaves of device_bytes.
// RESOURCE_EXHAUSTED: an operator's ranges need more; names the first position with the largest
// need, and that need.
absl::StatusOr<std::vector<int32_t>> SlotsAtPositions(const RangeTrace& trace,
                                                      int64_t device_bytes);

// The largest sum of the chunks that one operator uses and its non-model data.
int64_t LargestOperatorBytes(const RangeTrace& trace);

}  // namespace gemini::policies
