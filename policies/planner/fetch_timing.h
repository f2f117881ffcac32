// SPDX-License-Identifier: Apache-2.0
// When the fetch of each stay may begin: as early as its slots, its bytes and the budget allow.
// Rules:  not before the last use of who was in its slots, nor of the range itself; for what the
//         update changes, not before it; for a gradient, not before the last one that leaves for
//         its chunk. From there on each interval has room for it beside non-model data. Room goes
//         to what is needed first. What comes blank takes no time, so it begins when it is needed.
// Source: the conservative strategy of Cao, Felten, Karlin and Li, "A study of integrated
//         prefetching and caching strategies" (SIGMETRICS 1995): it fetches what replacement on
//         demand fetches, earlier.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/trace/next_uses.h"
#include "policies/trace/range_trace.h"
#include "policies/trace/stay.h"

namespace gemini::policies {

// By stay: the `after` of its fetch as gemini/plan/plan.h defines it, but negative when it begins
// in the round before: position - num_positions. Of a stay that is always there it has no meaning.
// O(chunks fetched * log positions).
std::vector<int32_t> FetchTimes(const RangeTrace& trace, const NextUses& next_uses,
                                const std::vector<int32_t>& slots_at,
                                const std::vector<Stay>& stays);

}  // namespace gemini::policies
