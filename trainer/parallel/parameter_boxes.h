// SPDX-License-Identifier: Apache-2.0
// Says which parts of a parameter, as the files have it, lie where in each rank's tensor, when the
// ranks of a tensor grid share it. Shapes, loading, saving, gradient norms and shards follow from
// it.
// Equal: each rank's tensor has the same sizes. A dimension that is no multiple of its parts is
//        padded at its end, by elements that no box has.
// Pure:  every rank computes the boxes of all and asks nobody.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "policies/mesh/tensor_grid.h"

namespace gemini::trainer {

// A part of a tensor: from `begin` to before `end` in each dimension, of which none is empty. Its
// first element is at `local_offset` of the rank's tensor, and the others lie there by the strides
// of that.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;
  int64_t local_offset = 0;
  bool operator==(const Box&) const = default;
};

// Elements that lie side by side both in the whole tensor and in a rank's, which are in memory row
// by row.
struct BoxRun {
  int64_t whole_offset = 0;
  int64_t local_offset = 0;
  int64_t count = 0;  // > 0.
  bool operator==(const BoxRun&) const = default;
};

// How the elements of a dimension are divided.
struct DimensionSplit {
  // The dimension is divided among the ranks along these axes. A rank's coordinate on the first
  // axis selects a coarse part, and its coordinate on the next axis a part of that. Without axes
  // every rank has the whole dimension.
  std::vector<policies::TensorAxis> axes = {};
  // These sizes add up to the dimension's, and each section is divided by itself: query, key and
  // value in one matrix are three sections. If it is empty, the dimension is one section.
  std::vector<int64_t> sections = {};
  // The dimension is divided into at most this many parts, such as the heads of a key. If the limit
  // is below the number of ranks, it divides that number, and neighbouring ranks have copies of one
  // part. 0 means that there is no limit.
  int64_t most_parts = 0;
};

class ParameterBoxes {
 public:
  // `splits` has one for each of `sizes`; each axis is in one of them at most, and divides the
  // parameters. Sections are not padded: their parts divide them.
  ParameterBoxes(std::vector<int64_t> sizes, std::vector<DimensionSplit> splits,
                 const policies::TensorGrid& grid);
  // Makes the boxes of a tensor that is not divided, for a grid of one rank.
  explicit ParameterBoxes(const std::vector<int64_t>& sizes)
      : ParameterBoxes(sizes, std::vector<DimensionSplit>(sizes.size()), policies::TensorGrid()) {}

  // Returns the sizes of the whole tensor, which are those in the files.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  // Returns the sizes of a rank's tensor, which are the same in all ranks.
  const std::vector<int64_t>& local_sizes() const { return local_sizes_; }
  // Returns what the rank at `place` has, in the order of its tensor. It may be nothing.
  std::vector<Box> BoxesOf(int64_t place) const;
  // Calls `visit` for the runs of what that rank has, between elements `begin` and `end` of the
  // whole tensor, or of the rank's. They rise within a box.
  void VisitRunsInWhole(int64_t place, int64_t begin, int64_t end,
                        absl::FunctionRef<void(const BoxRun&)> visit) const;
  void VisitRunsInLocal(int64_t place, int64_t begin, int64_t end,
                        absl::FunctionRef<void(const BoxRun&)> visit) const;
  // Whether that rank is the first of those that have the same boxes. Ranks in other layers of a
  // 2.5d grid are not among them. Of all such ranks each element is in one box.
  bool IsFirstOf(int64_t place) const;

 private:
  // Which part of a dimension a rank has.
  struct Part {
    int64_t number = 0;
    int64_t num_parts = 1;
    bool is_copy = false;  // A rank at a lower place has the same.
  };
  Part PartOf(size_t dimension, int64_t place) const;
  // The same for one box, from a dimension on, of which the elements before are at the run's
  // offsets. `offset` is that by which `begin` and `end` count.
  void VisitRuns(const Box& box, size_t dimension, BoxRun at, int64_t BoxRun::*offset,
                 int64_t begin, int64_t end, absl::FunctionRef<void(const BoxRun&)> visit) const;

  const std::vector<int64_t> sizes_;
  std::vector<DimensionSplit> splits_;  // Each has sections.
  const policies::TensorGrid grid_;
  std::vector<int64_t> local_sizes_;
};

}  // namespace gemini::trainer
