// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/update_team.h"

#include <algorithm>
#include <vector>

#include "gemini/system/numa_nodes.h"

namespace gemini {

int DefaultUpdateThreads(int num_processors) { return std::clamp(num_processors / 2, 1, 16); }

std::unique_ptr<WorkerTeam> MakeUpdateTeam(int num_threads) {
  const std::vector<int> allowed = AllowedProcessors();
  if (num_threads == 0) num_threads = DefaultUpdateThreads(static_cast<int>(allowed.size()));
  std::vector<WorkerTeam::Processors> places;
  if (num_threads > 1) {
    // Threads that cannot be placed run anywhere.
    if (const auto nodes = NumaNodesHere(); nodes.ok()) {
      places = PlacesOfThreads(*nodes, allowed, num_threads);
    }
  }
  return std::make_unique<WorkerTeam>(num_threads, places);
}

}  // namespace gemini
