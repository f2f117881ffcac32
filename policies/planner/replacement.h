// SPDX-License-Identifier: Apache-2.0
// Decides which ranges are on DEVICE when, and in which slots: fetches on demand, and eviction of
// the range used the farthest ahead, over a round that repeats. When a fetch begins is decided in
// fetch_timing.h.
// Rules: at position i the ranges on DEVICE fit into slots_at[i]. A range that has to be evicted is
// evicted after its last use, not when its room is needed. What the update makes stale is dropped
// at the update. Gradients that the update reads in HOST, and parameters that were written, are
// evicted before it. Gradients that are kept on DEVICE for it are evicted after it.
// Circle: a limited number of rounds is played, each from where the one before ended, until one
// ends as it began. If none does, ever fewer ranges may stay from one round into the next, until
// one does. With none that stays, a round always does.
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
  // By range: whether it stays on DEVICE while its version is valid. Empty: no range does.
  std::vector<bool> kept = {};
  // Whether other ranges are evicted after each operator, unless the next operator uses them.
  bool streams = false;
  bool oldest_first = true;   // As PlannedSlots defines it.
  bool spares_dirty = false;  // A dirty range counts as used next at half the distance.
  // If false, the next round is ignored, for comparison: DEVICE is empty when a round begins.
  bool looks_ahead = true;
  // The most rounds that are played (>= 1). Each begins as the one before ended. From each one's
  // end a round that ends as it begins is tried, and of these the one with the fewest fetches is
  // taken.
  int most_rounds = 4;
  // How often such a round is tried with ever fewer ranges that stay into the next one, before none
  // may stay. >= 0.
  int most_closings = 8;
};

// Returns the stays of a round. RESOURCE_EXHAUSTED: the kept ranges leave an operator no room; the
// message names the position and the numbers. INVALID_ARGUMENT: an operator's ranges need more than
// its slots (see SlotsAtPositions). `interrupt` is called every 65,536 steps, each a position or a
// slot that is examined for a run. Its error is returned. If it is DEADLINE_EXCEEDED and a round
// was closed already, the best stays so far are returned instead. O(chunks of all uses + uses log
// ranges), at most most_rounds * (most_closings + 2) times.
absl::StatusOr<std::vector<Stay>> MakeStays(const RangeTrace& trace, const NextUses& next_uses,
                                            const std::vector<int32_t>& slots_at, int32_t num_slots,
                                            const ReplacementRule& rule,
                                            const PlanInterrupt& interrupt = {});

}  // namespace gemini::policies
