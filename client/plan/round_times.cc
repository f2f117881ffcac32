// SPDX-License-Identifier: Apache-2.0
#include "client/plan/round_times.h"

#include <algorithm>
#include <optional>

namespace gemini::client {
namespace {

// A trace keeps an average of measured times over so many rounds: noise of one round counts little,
// and a change shows after some ten.
constexpr int64_t kAverageRounds = 8;

}  // namespace

void RoundTimes::BeginInterval(const Round& round, int32_t position) {
  const int64_t peak_bytes = budget_.TakePeak();
  meter_.Begin(position);
  if (round.trace != nullptr && round.num_positions > 0) {
    int64_t& kept_bytes = round.trace->operators[round.num_positions - 1].non_model_peak_bytes;
    kept_bytes = round.replaces_peaks ? peak_bytes : std::max(kept_bytes, peak_bytes);
  }
  TakeMeasured();
}

void RoundTimes::BeginRound() {
  // The interval of the last operator ends here.
  BeginInterval(before_, -1);
  before_.replaces_peaks = false;  // It has ended: a round that is withdrawn begins once more.
  current_ = {.first_interval = meter_.number() + 1};
}

void RoundTimes::EndRound(Trace* trace, int64_t average) {
  before_ = std::exchange(current_, {});
  before_.trace = trace;
  before_.average = average;
}

void RoundTimes::TakeMeasured() {
  while (const std::optional<IntervalMeter::Interval> interval = meter_.Take()) {
    const bool is_current =
        current_.trace != nullptr && interval->number >= current_.first_interval;
    const Round& round = is_current ? current_ : before_;
    const int64_t position = interval->number - round.first_interval;
    if (round.trace == nullptr || position < 0 || position >= round.num_positions) continue;
    int64_t& kept_ns = round.trace->operators[position].compute_ns;
    kept_ns +=
        (interval->compute_ns - kept_ns) / std::clamp<int64_t>(round.average, 1, kAverageRounds);
  }
}

void RoundTimes::TakeRoundBefore() {
  meter_.Await(before_.first_interval + before_.num_positions - 1);
  TakeMeasured();
}

}  // namespace gemini::client
