// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_layout.h"

#include <map>
#include <utility>

#include "gemini/system/check.h"

namespace gemini::trainer {

using policies::Mesh;
using policies::MeshAxis;
using policies::TensorAxis;
using policies::TensorGrid;

RankLayout::RankLayout(int64_t num_ranks) : RankLayout(*Mesh::Make(num_ranks, {}), TensorGrid()) {}

RankLayout::RankLayout(const Mesh& mesh, const TensorGrid& grid, bool parts_of_sequences)
    : mesh_(mesh), grid_(grid), parts_of_sequences_(parts_of_sequences) {
  GEMINI_CHECK(mesh.size(MeshAxis::kTensor) == grid.num_ranks());
  std::map<int64_t, std::vector<int64_t>> by_place;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    int64_t place = this->place(rank);
    // Layers of a 2.5d grid have the boxes of the first.
    if (!grid.DividesParameters(TensorAxis::kK)) place = grid.LineOf(place, TensorAxis::kK).front();
    by_place[place].push_back(rank);
  }
  for (auto& [place, ranks] : by_place) parts_.push_back(std::move(ranks));
}

std::vector<std::vector<int64_t>> RankLayout::Lines(TensorAxis axis) const {
  std::vector<std::vector<int64_t>> lines;
  for (const std::vector<int64_t>& grid : mesh_.Groups({MeshAxis::kTensor})) {
    for (int64_t place = 0; place < grid_.num_ranks(); ++place) {
      if (grid_.coordinate(place, axis) != 0) continue;
      std::vector<int64_t>& line = lines.emplace_back();
      for (const int64_t other : grid_.LineOf(place, axis)) {
        line.push_back(grid[static_cast<size_t>(other)]);
      }
    }
  }
  return lines;
}

std::vector<std::vector<int64_t>> RankLayout::Neighbours(int64_t count) const {
  std::vector<std::vector<int64_t>> groups;
  for (const std::vector<int64_t>& line : Lines(TensorAxis::kJ)) {
    for (size_t i = 0; i < line.size(); ++i) {
      if (static_cast<int64_t>(i) % count == 0) groups.emplace_back();
      groups.back().push_back(line[i]);
    }
  }
  return groups;
}

}  // namespace gemini::trainer
