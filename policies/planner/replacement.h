// SPDX-License-Identifier: Apache-2.0
// Who is on DEVICE when, and in which slots: fetches on demand, and replacement of what is used
// next the farthest ahead, over a round that repeats. When a fetch begins is left to
// fetch_timing.h.
// Rules:  at position i the ranges on DEVICE fit into slots_at[i]. A range that must leave leaves
//         after its last use, not when its room is needed. What the update makes stale leaves with
//         it; gradients that it reads in HOST, and parameters that were written, leave before it.
//         Gradients that are kept for it on DEVICE leave after it.
// Circle: rounds are played until one ends as it began. If none does, fewer ranges may stay from
//         one round into the next, until it does: with none it always does.
// Source: farthest next use is optimal for chunks of one size (Belady, IBM Systems Journal 5, 1966)
//         and any capacity over time; for ranges of several sizes, and slots that must be adjacent,
//         it is a heuristic: a run is made where clearing it costs the fewest chunks that come
//         back.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/trace/next_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

struct ReplacementRule {
  std::vector<bool> kept = {};  // By range: stays while its version is valid. Empty: none.
  bool streams = false;  // What is not kept leaves after each operator, unless the next uses it.
  bool oldest_first = true;   // See planned_slots.h.
  bool spares_dirty = false;  // A dirty range counts as used next at half the distance.
  // False: forgets the next round, for comparison: DEVICE is empty when a round begins.
  bool looks_ahead = true;
  // Rounds that are played, each from the end of the one before, until one can end as it began.
  // Each is made to, and the one with the fewest fetches taken. >= 1.
  int most_rounds = 4;
  // How often that is tried with ever fewer ranges that stay, before none may stay. >= 0.
  int most_closings = 8;
};

// The stays of a round. RESOURCE_EXHAUSTED: what is kept leaves an operator no room; names the
// position and the numbers. INVALID_ARGUMENT: the ranges of an operator are more than its slots
// (see SlotsAtPositions). O(chunks of all uses + uses log ranges), so many times: at most
// most_rounds * (most_closings + 2). What `interrupt` returns, which is asked every 65,536
// positions, and slots that are looked at for runs; but for DEADLINE_EXCEEDED where a round could
// be closed already: then it is the best stays so far.
absl::StatusOr<std::vector<Stay>> MakeStays(const RangeTrace& trace, const NextUses& next_uses,
                                            const std::vector<int32_t>& slots_at, int32_t num_slots,
                                            const ReplacementRule& rule,
                                            const PlanInterrupt& interrupt = {});

}  // namespace gemini::policies
