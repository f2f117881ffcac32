// SPDX-License-Identifier: Apache-2.0
// Decides which ranges are on DEVICE when, and in which slots: fetches on demand, and eviction of
// the range used the farthest ahead, over a round that repeats. When a fetch begins is decided in
// fetch_timing.h.
// Rules: at position i the ranges on DEVICE fit into slots_at[i]. A range that must leave leaves
// after its last use, not when its room is needed. What the update makes stale leaves with it.
// Gradients that it reads in HOST, and parameters that were written, leave before it. Gradients
// that are kept for it on DEVICE leave after it.
// Circle: rounds are played until one ends as it began. If none does, fewer ranges may stay from
// one round into the next, until one does; with none it always does.
// Source: farthest next use is optimal for chunks of one size (Belady, IBM Systems Journal 5, 1966)
// and any capacity over time. For ranges of several sizes, and slots that must be adjacent, it is a
// heuristic: a run is made where clearing it costs the fewest chunks that are fetched again.
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
  bool streams = false;       // Other ranges leave after each operator, unless the next uses them.
  bool oldest_first = true;   // See planned_slots.h.
  bool spares_dirty = false;  // A dirty range counts as used next at half the distance.
  // If false, the next round is ignored, for comparison: DEVICE is empty when a round begins.
  bool looks_ahead = true;
  // Rounds that are played, each from the end of the one before, until one can end as it began.
  // Each is made to do so, and the one with the fewest fetches is taken. >= 1.
  int most_rounds = 4;
  // How often that is tried with ever fewer ranges that stay, before none may stay. >= 0.
  int most_closings = 8;
};

// Returns the stays of a round. RESOURCE_EXHAUSTED: the ranges that are kept leave an operator no
// room; the message names the position and the numbers. INVALID_ARGUMENT: the ranges of an operator
// are more than its slots (see SlotsAtPositions). An error of `interrupt` is returned, which is
// asked every 65,536 positions, and slots that are looked at for runs; but for DEADLINE_EXCEEDED
// once a round could be closed: the result is then the best stays so far. O(chunks of all uses +
// uses log ranges), at most most_rounds * (most_closings + 2) times.
absl::StatusOr<std::vector<Stay>> MakeStays(const RangeTrace& trace, const NextUses& next_uses,
                                            const std::vector<int32_t>& slots_at, int32_t num_slots,
                                            const ReplacementRule& rule,
                                            const PlanInterrupt& interrupt = {});

}  // namespace gemini::policies
