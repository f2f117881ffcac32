// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/numa_nodes.h"

#include <numa.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"

namespace gemini {
namespace {

using Bitmask = std::unique_ptr<bitmask, decltype(&numa_bitmask_free)>;

bool IsSet(const Bitmask& mask, int bit) {
  return numa_bitmask_isbitset(mask.get(), static_cast<unsigned>(bit)) != 0;
}

// A machine has as many processors as this and no more: 16,384, twice what Linux on x86-64 can be
// built for.
using ProcessorSet = std::array<cpu_set_t, 16>;

// Folders node0, node1 and on; 0: a kernel without NUMA.
int NumNodes() {
  int num_nodes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    num_nodes += name.starts_with("node") && name.size() > 4 && absl::ascii_isdigit(name[4]);
  }
  return num_nodes;
}

}  // namespace

absl::StatusOr<std::vector<NumaNode>> NumaNodesHere() {
  std::vector<NumaNode> nodes;
  if (NumNodes() < 2) return nodes;
  if (numa_available() < 0) {
    return absl::PermissionDeniedError(
        "the kernel does not let this process ask about NUMA nodes (get_mempolicy): in a container "
        "give it CAP_SYS_NICE");
  }
  const Bitmask memory(numa_get_mems_allowed(), &numa_bitmask_free);
  const Bitmask processors(numa_allocate_cpumask(), &numa_bitmask_free);
  if (memory == nullptr || processors == nullptr) return nodes;
  for (int number = 0; number <= numa_max_node(); ++number) {
    // It complains on stderr of nodes that do not exist.
    if (!numa_bitmask_isbitset(numa_nodes_ptr, static_cast<unsigned>(number))) continue;
    if (numa_node_to_cpus(number, processors.get()) != 0) continue;
    NumaNode node = {.number = number, .has_memory = IsSet(memory, number), .processors = {}};
    for (int i = 0; i < static_cast<int>(processors->size); ++i) {
      if (IsSet(processors, i)) node.processors.push_back(i);
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<int> AllowedProcessors() {
  ProcessorSet set = {};
  std::vector<int> allowed;
  if (::sched_getaffinity(0, sizeof set, set.data()) != 0) return allowed;
  for (int i = 0; i < static_cast<int>(sizeof set * 8); ++i) {
    if (CPU_ISSET_S(i, sizeof set, set.data())) allowed.push_back(i);
  }
  return allowed;
}

std::vector<int> NodesToInterleave(absl::Span<const NumaNode> nodes) {
  std::vector<int> numbers;
  for (const NumaNode& node : nodes) {
    if (node.has_memory && !node.processors.empty()) numbers.push_back(node.number);
  }
  if (numbers.size() < 2) numbers.clear();
  return numbers;
}

std::vector<std::vector<int>> PlacesOfThreads(absl::Span<const NumaNode> nodes,
                                              absl::Span<const int> allowed, int num_threads) {
  std::vector<std::vector<int>> of_nodes;
  for (const NumaNode& node : nodes) {
    std::vector<int> processors;
    std::ranges::copy_if(node.processors, std::back_inserter(processors), [&](int processor) {
      return std::ranges::find(allowed, processor) != allowed.end();
    });
    if (!processors.empty()) of_nodes.push_back(std::move(processors));
  }
  std::vector<std::vector<int>> places;
  if (of_nodes.size() < 2) return places;
  for (size_t i = 0; i < static_cast<size_t>(num_threads); ++i) {
    places.push_back(of_nodes[i % of_nodes.size()]);
  }
  return places;
}

}  // namespace gemini
