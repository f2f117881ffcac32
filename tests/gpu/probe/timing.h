// SPDX-License-Identifier: Apache-2.0
// How long things take, and how such times are told.
#pragma once
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace gemini::probe {

// Calls `holds` every millisecond until it returns true. Returns the time since `start` then, or
// InfiniteDuration once that is more than `patience`.
absl::Duration TimeUntil(absl::Time start, absl::Duration patience,
                         const std::function<bool()>& holds);

// The times of `repetitions` calls, in microseconds. `afterwards` follows each and is not timed.
std::vector<double> Microseconds(
    int repetitions, const std::function<void()>& call,
    const std::function<void()>& afterwards = [] {});

// {"p50", "p90", "p99"}, each one of `times`: of fewer than 100 the last is the longest.
nlohmann::json Percentiles(std::vector<double> times);

// The rates of moving `bytes` in each of `microseconds`, GB/s at the same percentiles of the times:
// what is named p99 is a slow one.
nlohmann::json GigabytesPerSecond(double bytes, std::vector<double> microseconds);

}  // namespace gemini::probe
