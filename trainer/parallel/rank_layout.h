// SPDX-License-Identifier: Apache-2.0
// Which ranks of a job have what of a model. Ranks that share layers lie at the places of a tensor
// grid, and each has some boxes of the parameters. Ranks with the same boxes are a group, whose
// members have shards of these and add up their gradients; each group has one part of the model.
// Pure: every rank computes the same layout and asks nobody.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/mesh/mesh.h"
#include "policies/mesh/tensor_grid.h"

namespace gemini::trainer {

class RankLayout {
 public:
  // Ranks that share no layer: all have shards of the whole model.
  explicit RankLayout(int64_t num_ranks);
  // `grid` is that of the mesh's tensor axis. `parts_of_sequences`: its ranks have parts of each
  // sequence between the layers that they share.
  RankLayout(const policies::Mesh& mesh, const policies::TensorGrid& grid,
             bool parts_of_sequences = false);

  int64_t num_ranks() const { return mesh_.num_ranks(); }
  const policies::TensorGrid& grid() const { return grid_; }
  bool has_parts_of_sequences() const { return parts_of_sequences_; }
  // Returns a rank's place in its grid.
  int64_t place(int64_t rank) const { return mesh_.coordinate(rank, policies::MeshAxis::kTensor); }
  // Returns which rows of a step a rank learns from, of num_data(). Those of a grid learn from the
  // same ones.
  int64_t data(int64_t rank) const { return mesh_.coordinate(rank, policies::MeshAxis::kData); }
  int64_t num_data() const { return mesh_.size(policies::MeshAxis::kData); }
  // Whether a rank is the first one of its grid, which speaks for it.
  bool SpeaksForGrid(int64_t rank) const { return place(rank) == 0; }

  // The groups of ranks that have the same boxes, by the grid's places; in each the ranks ascend,
  // and the i-th one has the i-th shard.
  const std::vector<std::vector<int64_t>>& parts() const { return parts_; }
  // The grid's place of a part: that of its first rank.
  int64_t place_of_part(size_t part) const { return place(parts_[part].front()); }
  // The groups of ranks of one grid that differ along an axis alone.
  std::vector<std::vector<int64_t>> Lines(policies::TensorAxis axis) const;
  // The same, with each line along kJ cut into neighbours of `count`, which divides it.
  std::vector<std::vector<int64_t>> Neighbours(int64_t count) const;

 private:
  policies::Mesh mesh_;
  policies::TensorGrid grid_;
  bool parts_of_sequences_ = false;
  std::vector<std::vector<int64_t>> parts_;
};

}  // namespace gemini::trainer
