// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/fetch_order.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gemini/system/status_macros.h"
#include "policies/simulator/playback.h"

namespace gemini::policies {

absl::Status OrderFetches(const RangeTrace& trace, const CostModel& costs,
                          const PlanInterrupt& interrupt, Plan& plan) {
  Playback playback(trace, plan, costs, FetchChoice::kNeededFirst, PlaybackNotes::kNone);
  int64_t begin_ns = 0, end_ns = 0;  // Of the round after the watched one.
  for (int i = 0; i < FetchLane::kWatchedRound + 2; ++i) {
    if (interrupt) GEMINI_RETURN_IF_ERROR(interrupt());
    begin_ns = end_ns;
    end_ns = playback.now_ns();
    playback.PlayRound();
  }
  const int32_t n = trace.num_positions();
  struct Turn {
    int64_t ns;
    PlannedFetch fetch;
  };
  std::vector<Turn> turns;
  int64_t first_own_ns =
      end_ns - begin_ns;  // The first fetch that this round's list needs to have.
  for (size_t i = 0; i < plan.fetches.size(); ++i) {
    turns.push_back({.ns = playback.begun_ns()[i] - begin_ns, .fetch = plan.fetches[i]});
    if (plan.fetches[i].needed_at < n) first_own_ns = std::min(first_own_ns, turns.back().ns);
  }
  // A fetch for the next round that has its turn behind one that only that round lists is listed
  // there, too. The others begin as early as they can.
  std::vector<bool> is_later(trace.ranges.size());
  for (Turn& turn : turns) {
    if (turn.fetch.needed_at < n || turn.ns <= end_ns - begin_ns + first_own_ns) continue;
    turn.ns -= end_ns - begin_ns;
    turn.fetch.needed_at -= n;
    turn.fetch.after = -1;
    is_later[turn.fetch.range] = true;
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
    return std::pair(a.ns, a.fetch.needed_at) < std::pair(b.ns, b.fetch.needed_at);
  });
  Plan ordered = plan;
  for (size_t i = 0; i < turns.size(); ++i) ordered.fetches[i] = turns[i].fetch;
  std::erase_if(ordered.initial, [&](const PlannedResident& at) { return is_later[at.range]; });
  // Where the rounds were not alike yet, the order may be one that waits for itself.
  if (CheckPlan(ordered).ok()) plan = std::move(ordered);
  return absl::OkStatus();
}

}  // namespace gemini::policies
