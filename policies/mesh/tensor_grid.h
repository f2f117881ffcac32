// SPDX-License-Identifier: Apache-2.0
// Lays out the ranks of the mesh's tensor axis, which share each layer, as a grid.
//         1d:   a line, whose axis is j (Shoeybi et al., "Megatron-LM", arXiv:1909.08053).
//         2d:   q x q, i slower than j (Xu et al., arXiv:2104.05343).
//         2.5d: d layers of q x q, whose axis is k, slower than both (Wang et al.,
//               arXiv:2105.14500). All layers have the same parts of the parameters.
//         3d:   q x q x q, k slower than j, and j slower than i (Bian et al., arXiv:2105.14450).
// Places: a rank's number along the tensor axis, from 0 on.
// Pure:   every rank computes the same grid and asks nobody.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::policies {

enum class TensorMode : uint8_t { k1d, k2d, k2Point5d, k3d };
enum class TensorAxis : uint8_t { kI, kJ, kK };
inline constexpr int kNumTensorAxes = 3;

// Returns "1d", "2d", "2.5d" or "3d".
absl::string_view TensorModeName(TensorMode mode);

class TensorGrid {
 public:
  // One rank, which has all.
  TensorGrid() = default;
  // Returns the grid of `num_ranks` in `depth` layers, of which only 2.5d has more than one. Both
  // are at most 2^20. INVALID_ARGUMENT: there is none; the message names the nearest numbers of
  // ranks that have one.
  static absl::StatusOr<TensorGrid> Make(TensorMode mode, int64_t num_ranks, int64_t depth = 1);

  TensorMode mode() const { return mode_; }
  int64_t num_ranks() const { return sizes_[0] * sizes_[1] * sizes_[2]; }
  int64_t size(TensorAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // Returns where a place lies along `axis`, from 0 to size(axis) - 1.
  int64_t coordinate(int64_t place, TensorAxis axis) const;
  // Returns the places that differ from `place` along `axis` alone, itself among them, ascending.
  std::vector<int64_t> LineOf(int64_t place, TensorAxis axis) const;
  // Whether ranks that differ along `axis` have other parts of the parameters, or some that each of
  // them holds for all. Along the others they have the same ones, as ranks of the data axis do.
  bool DividesParameters(TensorAxis axis) const {
    return mode_ != TensorMode::k2Point5d || axis != TensorAxis::kK;
  }

 private:
  TensorMode mode_ = TensorMode::k1d;
  // Indexed by TensorAxis. A stride is how many places further the next one along the axis is.
  std::array<int64_t, kNumTensorAxes> sizes_ = {1, 1, 1};
  std::array<int64_t, kNumTensorAxes> strides_ = {1, 1, 1};
};

}  // namespace gemini::policies
