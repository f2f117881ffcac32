// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/timing.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/time/clock.h"

namespace gemini::probe {

absl::Duration TimeUntil(absl::Time start, absl::Duration patience,
                         const std::function<bool()>& holds) {
  while (!holds()) {
    if (absl::Now() - start > patience) return absl::InfiniteDuration();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::Now() - start;
}

std::vector<double> Microseconds(int repetitions, const std::function<void()>& call,
                                 const std::function<void()>& afterwards) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const absl::Time start = absl::Now();
    call();
    times.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    afterwards();
  }
  return times;
}

nlohmann::json Percentiles(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&times](size_t percent) {
    return times[(times.size() * percent + 99) / 100 - 1];  // The nearest rank.
  };
  return {{"p50", at(50)}, {"p90", at(90)}, {"p99", at(99)}};
}

nlohmann::json GigabytesPerSecond(double bytes, std::vector<double> microseconds) {
  nlohmann::json rates = Percentiles(std::move(microseconds));
  for (nlohmann::json& each : rates) each = bytes / each.get<double>() / 1e3;
  return rates;
}

}  // namespace gemini::probe
