// SPDX-License-Identifier: Apache-2.0
// Says which parts of a model each rank of a job has. Ranks of a pipeline have other blocks each
// (model_stages.h). Ranks that share layers lie at the places of a tensor grid, and each has some
// boxes of the parameters of those blocks. Ranks that share sequences, or learn from other rows,
// have the same boxes. Ranks with the same boxes are a group, whose members have shards of these
// and add up their gradients; each group has one part of the model.
// Pure: every rank computes the same layout and asks nobody.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "policies/mesh/mesh.h"
#include "policies/mesh/tensor_grid.h"

namespace gemini::trainer {

// How ranks share each sequence, between blocks at least.
enum class SequenceSharing : uint8_t {
  kNone,
  // The ranks of a tensor line have parts of it between the layers that they share.
  kMegatron,
  // The ranks of the mesh's sequence axis have parts of it in all layers, and in attention each has
  // some heads of the whole.
  kUlysses,
  // The same ranks have parts of it in all layers, and keys and values go from one to the next.
  kRing,
};

// Returns "none", "megatron", "ulysses" or "ring".
absl::string_view SequenceSharingName(SequenceSharing sharing);

struct SequenceLayout {
  SequenceSharing sharing = SequenceSharing::kNone;
  bool zigzag = false;  // As HiddenPart::zigzag says. Only a ring may have it.
};

class RankLayout {
 public:
  // Ranks that share no layer: all have shards of the whole model.
  explicit RankLayout(int64_t num_ranks);
  // `grid` is that of the mesh's tensor axis.
  RankLayout(const policies::Mesh& mesh, const policies::TensorGrid& grid,
             const SequenceLayout& sequence = {});

  int64_t num_ranks() const { return mesh_.num_ranks(); }
  const policies::TensorGrid& grid() const { return grid_; }
  const SequenceLayout& sequence() const { return sequence_; }
  // Whether ranks share sequences along the mesh's axis of them.
  bool shares_sequences() const { return mesh_.size(policies::MeshAxis::kSequence) > 1; }
  // Returns how many ranks have a row of a step together in one layer.
  int64_t ranks_of_row() const { return num_ranks() / num_data() / pipeline_ranks(); }
  // Returns how many parts a micro-batch's sequences are in.
  int64_t parts_of_batch() const;
  // Returns how many parts of equal size hidden states are in, between blocks.
  int64_t parts_of_hidden() const;
  // Returns a rank's place in its grid.
  int64_t place(int64_t rank) const { return mesh_.coordinate(rank, policies::MeshAxis::kTensor); }
  // Returns which rows of a step a rank learns from, of num_data(). Those that share layers or
  // sequences learn from the same ones.
  int64_t data(int64_t rank) const { return mesh_.coordinate(rank, policies::MeshAxis::kData); }
  int64_t num_data() const { return mesh_.size(policies::MeshAxis::kData); }
  // Whether a rank reports the loss for all ranks that learn from the same rows: it is the first
  // one that has their loss, which in a pipeline is with the last blocks.
  bool SpeaksForData(int64_t rank) const {
    return pipeline_rank(rank) == pipeline_ranks() - 1 && place(rank) == 0 &&
           mesh_.coordinate(rank, policies::MeshAxis::kSequence) == 0;
  }
  // Returns a rank's place in its pipeline, of pipeline_ranks().
  int64_t pipeline_rank(int64_t rank) const {
    return mesh_.coordinate(rank, policies::MeshAxis::kPipeline);
  }
  int64_t pipeline_ranks() const { return mesh_.size(policies::MeshAxis::kPipeline); }

  // Returns where a rank lies, as "dp 0, sp 1, tp 2 (i 0, j 1, k 1)": along the axes that have
  // several ranks, and "dp 0" if none has.
  std::string CoordinatesOf(int64_t rank) const;

  // The groups of ranks that have the same boxes, by their places in pipelines, and then by the
  // grid's places; in each the ranks ascend, and the i-th one has the i-th shard.
  const std::vector<std::vector<int64_t>>& parts() const { return parts_; }
  // The grid's place of a part: that of its first rank.
  int64_t place_of_part(size_t part) const { return place(parts_[part].front()); }
  int64_t pipeline_rank_of_part(size_t part) const { return pipeline_rank(parts_[part].front()); }
  // The groups of ranks of one grid that differ along an axis alone.
  std::vector<std::vector<int64_t>> Lines(policies::TensorAxis axis) const;
  // Cuts each line along kJ into groups of `count` neighbours; `count` divides it.
  std::vector<std::vector<int64_t>> Neighbours(int64_t count) const;
  // The groups of ranks that differ along the mesh's sequence axis alone.
  std::vector<std::vector<int64_t>> SequenceLines() const {
    return mesh_.Groups({policies::MeshAxis::kSequence});
  }
  // The pipelines: groups of ranks that differ along that axis alone, in the order of the model.
  std::vector<std::vector<int64_t>> Pipelines() const {
    return mesh_.Groups({policies::MeshAxis::kPipeline});
  }
  // Returns a group of the first and the last rank of each pipeline, and a group of one for each
  // rank between them. Pipelines have at least two ranks.
  std::vector<std::vector<int64_t>> EndsOfPipelines() const;

 private:
  policies::Mesh mesh_;
  policies::TensorGrid grid_;
  SequenceLayout sequence_;
  std::vector<std::vector<int64_t>> parts_;
};

}  // namespace gemini::trainer
