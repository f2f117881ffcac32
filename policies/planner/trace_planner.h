// SPDX-License-Identifier: Apache-2.0
// Makes plans of one trace, each by a replacement rule, and compares them.
// Units: times in nanoseconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/plan/plan.h"
#include "policies/planner/replacement.h"
#include "policies/trace/next_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

// Round times that differ by less than this fraction are equal: their prediction is no better.
inline constexpr double kSameTime = 0.01;

// Returns whether `a` is to be preferred: the faster plan, or of two that are as fast the one that
// moves less.
bool IsBetter(const Plan& a, const Plan& b);

class TracePlanner {
 public:
  // `trace` is that of the inputs, or one that keeps gradients, and `slots_at` are its
  // SlotsAtPositions. `in` and `trace` outlive this.
  TracePlanner(const PlanInputs& in, const RangeTrace& trace, std::vector<int32_t> slots_at);

  // Makes the plan by the rule, called `name`. RESOURCE_EXHAUSTED: as MakeStays. Any other error is
  // the interrupt's.
  absl::StatusOr<Plan> Make(const ReplacementRule& rule, std::string name);

  // As Make, but returns no value where Make returns an error, if the plan would be that of the
  // last Make, or if it cannot be better than `best`.
  std::optional<Plan> Try(const ReplacementRule& rule, std::string name, const Plan& best) const;

 private:
  absl::StatusOr<std::vector<Stay>> Stays(const ReplacementRule& rule) const;
  absl::StatusOr<Plan> Finish(const std::vector<Stay>& stays, std::string name) const;
  int64_t FetchedChunks(const std::vector<Stay>& stays) const;
  // Returns the fewest chunks that the rule fetches, whatever its stays. A range that streams is
  // fetched for each operator that uses it, except for one directly after another.
  int64_t LeastFetchedChunks(const ReplacementRule& rule) const;
  // Returns whether a plan that fetches so many chunks could be better. A round takes at least the
  // time of its fetches on the link, of its computation, and of its updates in HOST.
  bool MayBeBetter(int64_t fetched_chunks, const Plan& best) const;
  // Returns the most slots that a plan may use: two for each chunk that is ever used. The limit
  // keeps a huge budget from needing a huge table.
  int64_t MostSlots() const;

  const PlanInputs& in_;
  const RangeTrace& trace_;
  const NextUses next_uses_;
  const std::vector<int32_t> slots_at_;
  const double least_ns_;    // The least time of a round, whatever it moves.
  std::vector<Stay> stays_;  // Stays of the plan that Make made.
};

}  // namespace gemini::policies
