// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/rank_groups.h"

#include <algorithm>
#include <vector>

namespace gemini::policies {

RankGroups GroupsOf(const Mesh& mesh, const TensorGrid& grid, int64_t ranks_per_node) {
  // The grid's ranks by their places.
  const std::vector<int64_t> tensor = mesh.GroupOf(0, {MeshAxis::kTensor});
  RankGroups groups;
  for (const TensorAxis axis : {TensorAxis::kI, TensorAxis::kJ, TensorAxis::kK}) {
    std::vector<int64_t> ranks;
    for (const int64_t place : grid.LineOf(0, axis)) {
      ranks.push_back(tensor[static_cast<size_t>(place)]);
    }
    groups.lines[static_cast<size_t>(axis)] = PlacesOf(ranks, ranks_per_node);
  }
  groups.sequence = PlacesOf(mesh.GroupOf(0, {MeshAxis::kSequence}), ranks_per_node);
  std::vector<int64_t> shards;
  for (const int64_t rank : mesh.GroupOf(0, {MeshAxis::kData, MeshAxis::kSequence})) {
    if (grid.DividesParameters(TensorAxis::kK)) {
      shards.push_back(rank);
      continue;
    }
    const std::vector<int64_t> beside = mesh.GroupOf(rank, {MeshAxis::kTensor});
    for (const int64_t place : grid.LineOf(0, TensorAxis::kK)) {
      shards.push_back(beside[static_cast<size_t>(place)]);
    }
  }
  std::ranges::sort(shards);
  groups.shards = PlacesOf(shards, ranks_per_node);
  const std::vector<int64_t> stages = mesh.GroupOf(0, {MeshAxis::kPipeline});
  groups.stages_cross_nodes = stages.back() / ranks_per_node != stages.front() / ranks_per_node;
  return groups;
}

}  // namespace gemini::policies
