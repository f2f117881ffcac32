// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_layout.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/check.h"

namespace gemini::trainer {

using policies::Mesh;
using policies::MeshAxis;
using policies::TensorAxis;
using policies::TensorGrid;

absl::string_view SequenceSharingName(SequenceSharing sharing) {
  constexpr absl::string_view kNames[] = {"none", "megatron", "ulysses", "ring"};
  return kNames[static_cast<size_t>(sharing)];
}

RankLayout::RankLayout(int64_t num_ranks) : RankLayout(*Mesh::Make(num_ranks, {}), TensorGrid()) {}

RankLayout::RankLayout(const Mesh& mesh, const TensorGrid& grid, const SequenceLayout& sequence)
    : mesh_(mesh), grid_(grid), sequence_(sequence) {
  GEMINI_CHECK(mesh.size(MeshAxis::kTensor) == grid.num_ranks());
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> by_place;  // In pipeline and grid.
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    int64_t place = this->place(rank);
    // Layers of a 2.5d grid have the boxes of the first.
    if (!grid.DividesParameters(TensorAxis::kK)) place = grid.LineOf(place, TensorAxis::kK).front();
    by_place[{pipeline_rank(rank), place}].push_back(rank);
  }
  for (auto& [place, ranks] : by_place) parts_.push_back(std::move(ranks));
}

int64_t RankLayout::parts_of_batch() const {
  if (grid_.mode() == policies::TensorMode::k1d) return 1;
  const bool in_cube = grid_.mode() == policies::TensorMode::k3d;
  return grid_.size(TensorAxis::kI) * grid_.size(in_cube ? TensorAxis::kJ : TensorAxis::kK);
}

int64_t RankLayout::parts_of_hidden() const {
  const bool whole_in_grid =
      grid_.mode() == policies::TensorMode::k1d && sequence_.sharing != SequenceSharing::kMegatron;
  return mesh_.size(MeshAxis::kSequence) * (whole_in_grid ? 1 : grid_.num_ranks());
}

std::string RankLayout::CoordinatesOf(int64_t rank) const {
  std::vector<std::string> along;
  for (const MeshAxis axis : policies::kDefaultMeshOrder) {
    if (mesh_.size(axis) == 1) continue;
    along.push_back(absl::StrCat(policies::MeshAxisName(axis), " ", mesh_.coordinate(rank, axis)));
  }
  if (along.empty()) return "dp 0";
  std::vector<std::string> in_grid;
  constexpr std::pair<TensorAxis, const char*> kAxes[] = {
      {TensorAxis::kI, "i"}, {TensorAxis::kJ, "j"}, {TensorAxis::kK, "k"}};
  for (const auto& [axis, name] : kAxes) {
    if (grid_.size(axis) == 1) continue;
    in_grid.push_back(absl::StrCat(name, " ", grid_.coordinate(place(rank), axis)));
  }
  // A line's only coordinate is the place.
  const std::string last =
      in_grid.size() > 1 ? absl::StrCat(" (", absl::StrJoin(in_grid, ", "), ")") : "";
  return absl::StrCat(absl::StrJoin(along, ", "), last);
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

std::vector<std::vector<int64_t>> RankLayout::EndsOfPipelines() const {
  std::vector<std::vector<int64_t>> groups;
  for (const std::vector<int64_t>& pipeline : Pipelines()) {
    groups.push_back({pipeline.front(), pipeline.back()});
    for (size_t i = 1; i + 1 < pipeline.size(); ++i) groups.push_back({pipeline[i]});
  }
  return groups;
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
