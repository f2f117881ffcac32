// SPDX-License-Identifier: Apache-2.0
// Decides how many threads an operator of a rank has where the run does not say it. Runs and
// forecasts of them ask here, so they have the same.
// Thread: any.
#pragma once
#include <algorithm>
#include <cstdint>

namespace gemini::trainer {

// Returns the threads of an operator where a machine of `processors`, of which this process may use
// `usable`, has so many ranks: at least one.
inline int64_t ThreadsOfRank(int64_t processors, int64_t usable, int64_t num_local_ranks) {
  return std::max<int64_t>(1, std::min(usable, processors / num_local_ranks));
}

}  // namespace gemini::trainer
