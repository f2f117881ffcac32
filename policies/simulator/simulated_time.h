// SPDX-License-Identifier: Apache-2.0
// Has the clock that the parts of a simulation share.
// Units: nanoseconds since the first round's beginning.
#pragma once
#include <cstdint>

#include "gemini/stall_cause.h"

namespace gemini::policies {

// A point in time, and the cause of the stall of what waits for it.
struct Moment {
  int64_t ns = 0;
  StallCause cause = StallCause::kTransfer;
};

struct SimulatedTime {
  int64_t now_ns = 0;  // The end of the last interval.
  int64_t round_begin_ns = 0;
  int64_t round_ns = 0;   // Length of the last finished round.
  int64_t rounds = 0;     // Number of finished rounds.
  int32_t position = -1;  // Of the current operator.
};

}  // namespace gemini::policies
