// SPDX-License-Identifier: Apache-2.0
// Makes plans of one trace, each by a replacement rule, and says which of two is to be preferred.
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

// Times this close are one: their prediction is no better than that.
inline constexpr double kSameTime = 0.01;

// Whether `a` is to be preferred: the faster one, or of those that are as fast the one that moves
// less.
bool IsBetter(const Plan& a, const Plan& b);

class TracePlanner {
 public:
  // `trace` is that of the inputs, or one that keeps gradients; `slots_at` are its
  // SlotsAtPositions. Both outlive this.
  TracePlanner(const PlanInputs& in, const RangeTrace& trace, std::vector<int32_t> slots_at);

  // The plan by the rule, called `name`. RESOURCE_EXHAUSTED: MakeStays.
  absl::StatusOr<Plan> Make(const ReplacementRule& rule, std::string name);

  // As Make; nothing: there is none, it would be that of the last Make, or it cannot be better than
  // `best`.
  std::optional<Plan> Try(const ReplacementRule& rule, std::string name, const Plan& best) const;

 private:
  absl::StatusOr<std::vector<Stay>> Stays(const ReplacementRule& rule) const;
  Plan Finish(const std::vector<Stay>& stays, std::string name) const;
  int64_t FetchedChunks(const std::vector<Stay>& stays) const;
  // The fewest that the rule leaves, whatever its stays: who streams comes for each operator that
  // uses it, but for one behind another.
  int64_t LeastFetchedChunks(const ReplacementRule& rule) const;
  // Whether a plan that fetches so many could be: none is faster than its link, or than what it
  // computes and updates.
  bool MayBeBetter(int64_t fetched_chunks, const Plan& best) const;
  // More than all chunks that are ever used is never taken; a huge budget need not be a huge table.
  int64_t MostSlots() const;

  const PlanInputs& in_;
  const RangeTrace& trace_;
  const NextUses next_uses_;
  const std::vector<int32_t> slots_at_;
  const double least_ns_;    // Of a round, whatever it moves.
  std::vector<Stay> stays_;  // Of the plan that Make made.
};

}  // namespace gemini::policies
