// SPDX-License-Identifier: Apache-2.0
// Finds what would help a job most on a machine: it repeats the forecast with one thing changed at
// a time.
#pragma once
#include <string>
#include <vector>

#include "tools/forecast.h"

namespace gemini::tools {

struct Advice {
  std::string change;  // "recompute activations (--recompute)".
  Job job;             // With the change.
  Machine machine;
  Forecast forecast;  // Fits.
};

// Returns the changes that can be foretold and after which the job fits, most tokens a second
// first. For a job that fits, only those that gain more than kLeastGain. Chunks keep the size of
// `forecast`, that of the unchanged job, unless that does not fit.
inline constexpr double kLeastGain = 0.01;
std::vector<Advice> Advise(const Job& job, const Machine& machine, const Forecast& forecast,
                           RoundTracer tracer);

}  // namespace gemini::tools
