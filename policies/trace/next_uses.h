// SPDX-License-Identifier: Apache-2.0
// Finds when each range is used next, and how many slots each interval leaves to chunks.
// Replacement by the farthest next use looks both up.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Stands for a position when a range is not used again before it is stale, or before the round
// ends.
inline constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

struct NextUses {
  explicit NextUses(const RangeTrace& trace);
  std::vector<int32_t> next;   // By use: position of the range's next one in the round, or kNever.
  std::vector<int32_t> first;  // By range: position of its first use in the round, or kNever.
  // By range: whether its copy on DEVICE ends with the update. So do parameters that are updated in
  // HOST, and their gradients unless they are late.
  std::vector<bool> ends_at_update;
  // By range: whether it is a gradient that is kept until the update. It leaves after that, and its
  // next fetch is blank.
  std::vector<bool> comes_blank;
};

// Returns the slots for chunks in each interval: what non-model data leaves of device_bytes.
// RESOURCE_EXHAUSTED: an operator's ranges need more; the message names the first position with the
// largest need, and that need.
absl::StatusOr<std::vector<int32_t>> SlotsAtPositions(const RangeTrace& trace,
                                                      int64_t device_bytes);

// Returns the largest sum of the chunks that one operator uses and its non-model data.
int64_t LargestOperatorBytes(const RangeTrace& trace);

}  // namespace gemini::policies
