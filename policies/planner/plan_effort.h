// SPDX-License-Identifier: Apache-2.0
// Estimates what it takes to plan a trace, before it is planned, and chooses how many variants are
// tried for its size. So the time of a plan grows about linearly with its trace, and has a bound.
// Units: steps, each of about the same time: an operator, a use, a chunk of a use or of a gradient
// that leaves. A tensor, and a chunk that the update changes, count as eight.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "gemini/plan/trace.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// The largest trace that is planned. It takes up to 1.7 s and 300 MiB (docs/benchmarks.md).
inline constexpr int64_t kMaxPlanSteps = int64_t{1} << 22;

// Returns the steps, or kMaxPlanSteps + 1 if there are more, so that no sum overflows. For a trace
// that is not packed yet, in chunks of `chunk_bytes` (> 0), the result is at least the steps that
// it has packed. That trace passes CheckTrace.
int64_t PlanSteps(const RangeTrace& trace);
int64_t PlanSteps(const Trace& trace, int64_t chunk_bytes);

// Returns RESOURCE_EXHAUSTED, with the numbers, if `steps` exceeds kMaxPlanSteps.
absl::Status CheckPlanSteps(int64_t steps);

struct PlanEffort {
  // For one replacement rule, as in ReplacementRule.
  int most_rounds = 4;
  int most_closings = 8;
  bool compares_rules = true;  // If false, the first rule that has a plan is taken.
  int most_kept_tries = 36;    // Choices of the gradients that stay on DEVICE for the update.
};

PlanEffort EffortFor(int64_t steps);

}  // namespace gemini::policies
