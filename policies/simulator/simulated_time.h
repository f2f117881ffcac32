// SPDX-License-Identifier: Apache-2.0
// Where a simulation is in time, and when one thing in it is over: what the lanes of a playback
// share.
// Units: nanoseconds since the first round's beginning.
#pragma once
#include <cstdint>

#include "gemini/stall_cause.h"

namespace gemini::policies {

// When something is there, and what it waited for.
struct Moment {
  int64_t ns = 0;
  StallCause cause = StallCause::kTransfer;
};

struct SimulatedTime {
  int64_t now_ns = 0;  // The end of the last interval.
  int64_t round_begin_ns = 0;
  int64_t round_ns = 0;   // How long the last round took that is over.
  int64_t rounds = 0;     // How many are over.
  int32_t position = -1;  // Of the operator under way.
};

}  // namespace gemini::policies
