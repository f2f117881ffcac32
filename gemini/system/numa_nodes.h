// SPDX-License-Identifier: Apache-2.0
// Finds the NUMA nodes of this machine, and which of them memory and threads are spread over, so
// that work on all of the memory has the bandwidth of all nodes
// (docs/adr/0020-update-threads-and-numa.md). On a machine with one node nothing is spread.
// Thread: any. Units: numbers of nodes and processors as the kernel counts them.
#pragma once
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gemini {

struct NumaNode {
  int number = 0;
  bool has_memory = false;  // Memory that this process may use.
  std::vector<int> processors;
};

// Returns all nodes, by number, or none if there are fewer than two. PERMISSION_DENIED: there are
// several, but this process, in a container for example, may not ask about them.
absl::StatusOr<std::vector<NumaNode>> NumaNodesHere();

// Returns the processors that the calling thread may use, in order.
std::vector<int> AllowedProcessors();

// Returns the nodes that memory is interleaved over: those with memory and processors. Nodes
// without processors hold another kind of memory, such as a GPU's. Returns none if there are fewer
// than two.
std::vector<int> NodesToInterleave(absl::Span<const NumaNode> nodes);

// Returns the processors for each of `num_threads`. The nodes that have some of `allowed` take
// turns: thread i gets the processors of the i-th. Returns none if there are fewer than two such
// nodes.
std::vector<std::vector<int>> PlacesOfThreads(absl::Span<const NumaNode> nodes,
                                              absl::Span<const int> allowed, int num_threads);

}  // namespace gemini
