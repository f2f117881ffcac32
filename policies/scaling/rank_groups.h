// SPDX-License-Identifier: Apache-2.0
// Computes how the groups in which a rank exchanges data lie on nodes. Pure.
#pragma once
#include <array>
#include <cstdint>

#include "policies/mesh/collective_cost.h"
#include "policies/mesh/mesh.h"
#include "policies/mesh/tensor_grid.h"

namespace gemini::policies {

// These are the groups of the first rank. Those of the others lie alike where groups fill nodes or
// divide them.
struct RankGroups {
  // The lines of its grid, by TensorAxis.
  std::array<GroupPlaces, kNumTensorAxes> lines;
  GroupPlaces sequence;  // Ranks that share sequences along the mesh's axis of them.
  // Ranks with the same parts of layers, among which ZeRO divides: those that learn from other
  // sequences, share them along their axis, or lie along the depth of 2.5d.
  GroupPlaces shards;
  // Whether two neighbours of a pipeline are on different nodes. The slowest link then counts for
  // all of them.
  bool stages_cross_nodes = false;
  const GroupPlaces& line(TensorAxis axis) const { return lines[static_cast<size_t>(axis)]; }
};

// `grid` is that of the mesh's tensor axis.
RankGroups GroupsOf(const Mesh& mesh, const TensorGrid& grid, int64_t ranks_per_node);

}  // namespace gemini::policies
