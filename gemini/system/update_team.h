// SPDX-License-Identifier: Apache-2.0
// Makes the team of threads that updates parameters and computes norms, and chooses how many there
// are and where they run.
// Thread: any.
#pragma once
#include <memory>

#include "gemini/system/worker_team.h"

namespace gemini {

inline constexpr int kMaxUpdateThreads = 1024;

// Returns the default number of threads for `num_processors`: half of them, because operators run
// on the others, but at least 1 and at most 16. An update is bound by memory, which 16 threads keep
// busy.
int DefaultUpdateThreads(int num_processors);

// Makes the team of `num_threads`, from 0 to kMaxUpdateThreads. 0 stands for DefaultUpdateThreads
// of the processors that the calling thread may use. If those belong to several NUMA nodes, the
// helpers are bound to the nodes in turn.
std::unique_ptr<WorkerTeam> MakeUpdateTeam(int num_threads);

}  // namespace gemini
