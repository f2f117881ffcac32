// SPDX-License-Identifier: Apache-2.0
// Decides when the fetch of each stay may begin: as early as its slots, its bytes and the budget
// allow.
// Rules: a fetch begins no earlier than the last use of the range that was in its slots, and of the
// range itself. For a range that the update changes, it begins no earlier than the update; for a
// gradient, no earlier than the last one that leaves for its chunk. From there on each interval has
// room for it beside non-model data. Room goes to what is needed first. A blank fetch takes no
// time, so it begins when it is needed.
// Source: the conservative strategy of Cao, Felten, Karlin and Li, "A study of integrated
// prefetching and caching strategies" (SIGMETRICS 1995): it fetches what replacement on demand
// fetches, earlier.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/trace/next_uses.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

// Returns, by stay, the `after` of its fetch as gemini/plan/plan.h defines it. It is negative,
// position - num_positions, if the fetch begins in the round before. For a stay that is always
// there it has no meaning. O(chunks fetched * log positions).
std::vector<int32_t> FetchTimes(const RangeTrace& trace, const NextUses& next_uses,
                                const std::vector<int32_t>& slots_at,
                                const std::vector<Stay>& stays);

}  // namespace gemini::policies
