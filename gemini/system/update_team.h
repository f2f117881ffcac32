// SPDX-License-Identifier: Apache-2.0
// The team of threads that updates parameters and finds norms: how many, and where they run.
// Thread: any.
#pragma once
#include <memory>

#include "gemini/system/worker_team.h"

namespace gemini {

inline constexpr int kMaxUpdateThreads = 1024;

// How many threads an update has on `num_processors`, where nobody says: half of them, for
// operators run on the others; at least 1. At most 16: an update is bound by memory, which fewer
// keep busy.
int DefaultUpdateThreads(int num_processors);

// Makes the team of `num_threads`, from 0 to kMaxUpdateThreads; 0: DefaultUpdateThreads of the
// processors that the calling thread may use. Where those are of several NUMA nodes the helpers are
// bound to the nodes in turn.
std::unique_ptr<WorkerTeam> MakeUpdateTeam(int num_threads);

}  // namespace gemini
