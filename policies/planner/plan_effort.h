// SPDX-License-Identifier: Apache-2.0
// What it takes to plan a trace, known before it is planned, and how much is tried for one of its
// size: so the time that a plan takes grows about linearly with its trace, and has a bound.
// Units: steps, each of about the same time: an operator, a use, a chunk of a use or of a gradient
//        that leaves. A tensor, and a chunk that the update changes, are eight.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "gemini/plan/trace.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// The largest trace that is planned. One of so many takes up to 1.7 s and 300 MiB
// (docs/benchmarks.md).
inline constexpr int64_t kMaxPlanSteps = int64_t{1} << 22;

// Returns the steps, or kMaxPlanSteps + 1 where there are more: no sum overflows. Not packed yet, a
// trace in chunks of `chunk_bytes` (> 0) has at least the steps that it has packed; it passes
// CheckTrace.
int64_t PlanSteps(const RangeTrace& trace);
int64_t PlanSteps(const Trace& trace, int64_t chunk_bytes);

// RESOURCE_EXHAUSTED, with the numbers, if these are more than kMaxPlanSteps.
absl::Status CheckPlanSteps(int64_t steps);

struct PlanEffort {
  // Of one replacement rule, as in ReplacementRule.
  int most_rounds = 4;
  int most_closings = 8;
  bool compares_rules = true;  // False: the first rule that has a plan is taken.
  int most_kept_tries = 36;    // Choices of the gradients that stay on DEVICE for the update.
};

PlanEffort EffortFor(int64_t steps);

}  // namespace gemini::policies
