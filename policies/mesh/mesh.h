// SPDX-License-Identifier: Apache-2.0
// Lays out the ranks of a job as a mesh, with an axis for each way in which they share the work.
// Ranks that differ along some axes alone are a group, and exchange what that sharing needs.
// Order: a rank's number counts its coordinates, those of the last axis first, as digits of a
//        number. So ranks beside each other along the last axis have neighbouring numbers, and
//        launchers put them on one machine.
// Pure: every rank computes the same mesh and asks nobody.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gemini::policies {

enum class MeshAxis : uint8_t { kPipeline, kData, kSequence, kTensor };
inline constexpr int kNumMeshAxes = 4;

// Returns "pp", "dp", "sp" or "tp".
absl::string_view MeshAxisName(MeshAxis axis);

// All axes, from the slowest to the fastest.
using MeshOrder = std::array<MeshAxis, kNumMeshAxes>;
inline constexpr MeshOrder kDefaultMeshOrder = {MeshAxis::kPipeline, MeshAxis::kData,
                                                MeshAxis::kSequence, MeshAxis::kTensor};

// Returns the order that `text` names, as in "pp,dp,sp,tp". INVALID_ARGUMENT: it does not name each
// axis once.
absl::StatusOr<MeshOrder> ParseMeshOrder(absl::string_view text);

// Sizes of the axes that are chosen. Each is at least 1.
struct MeshSizes {
  int64_t pipeline = 1;
  int64_t sequence = 1;
  int64_t tensor = 1;
};

class Mesh {
 public:
  // Returns the mesh of `num_ranks` (>= 1), whose data axis takes what the others leave.
  // INVALID_ARGUMENT: a size is below 1, or their product does not divide the ranks; the message
  // spells it out.
  static absl::StatusOr<Mesh> Make(int64_t num_ranks, const MeshSizes& sizes,
                                   const MeshOrder& order = kDefaultMeshOrder);

  int64_t num_ranks() const { return num_ranks_; }
  int64_t size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // Returns where a rank lies along `axis`, from 0 to size(axis) - 1. `rank` is one of the mesh's.
  int64_t coordinate(int64_t rank, MeshAxis axis) const;

  // Returns the ranks that differ from `rank` along `axes` alone, itself among them, ascending:
  // ordered by their coordinates, those of the slowest axis first. Each axis is named once at most.
  std::vector<int64_t> GroupOf(int64_t rank, absl::Span<const MeshAxis> axes) const;
  // Returns all groups along `axes`, by their lowest ranks. Every rank is in one of them. This is
  // the order in which all ranks make them.
  std::vector<std::vector<int64_t>> Groups(absl::Span<const MeshAxis> axes) const;

  // Returns "pp 2 x dp 3 x sp 1 x tp 4", in the mesh's order.
  std::string ToString() const;

 private:
  Mesh() = default;

  int64_t num_ranks_ = 1;
  MeshOrder order_ = kDefaultMeshOrder;
  // Indexed by MeshAxis. A stride is how many ranks further the next one along the axis is.
  std::array<int64_t, kNumMeshAxes> sizes_ = {1, 1, 1, 1};
  std::array<int64_t, kNumMeshAxes> strides_ = {1, 1, 1, 1};
};

}  // namespace gemini::policies
