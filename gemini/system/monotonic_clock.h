// SPDX-License-Identifier: Apache-2.0
// Reads the clock for time-outs and durations. It is CLOCK_MONOTONIC, which a changed wall clock
// does not move. absl::Now is for dates alone (tests/tools/include_rules.py).
// Thread: any.
#pragma once
#include <time.h>

#include "absl/time/time.h"

namespace gemini {

// Returns the time since a moment that is fixed while the machine runs and the same for all
// processes.
inline absl::Duration MonotonicNow() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace gemini
