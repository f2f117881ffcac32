// SPDX-License-Identifier: Apache-2.0
// Reads the clock of a session's timeline in nanoseconds: std::chrono::steady_clock, which is
// CLOCK_MONOTONIC.
#pragma once
#include <chrono>
#include <cstdint>

namespace gemini::client {

inline int64_t TimelineNs(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
inline int64_t TimelineNowNs() { return TimelineNs(std::chrono::steady_clock::now()); }

}  // namespace gemini::client
