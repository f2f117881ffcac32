// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/tensor_grid.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gemini::policies {
namespace {

constexpr std::array<absl::string_view, 4> kNames = {"1d", "2d", "2.5d", "3d"};

// As "2.5d of depth 2 takes 2 q^2 ranks".
std::string RuleOf(TensorMode mode, int64_t depth) {
  if (mode == TensorMode::k3d) return "3d takes q^3 ranks";
  if (mode == TensorMode::k2d) return "2d takes q^2 ranks";
  return absl::StrCat("2.5d of depth ", depth, " takes ", depth, " q^2 ranks");
}

}  // namespace

absl::string_view TensorModeName(TensorMode mode) { return kNames[static_cast<size_t>(mode)]; }

absl::StatusOr<TensorGrid> TensorGrid::Make(TensorMode mode, int64_t num_ranks, int64_t depth) {
  if (num_ranks < 1 || depth < 1) {
    return absl::InvalidArgumentError(absl::StrCat(TensorModeName(mode), " of ", num_ranks,
                                                   " ranks and depth ", depth,
                                                   ": both are at least 1"));
  }
  if (depth > 1 && mode != TensorMode::k2Point5d) {
    return absl::InvalidArgumentError(absl::StrCat("a depth of ", depth, " with ",
                                                   TensorModeName(mode), ": only 2.5d has one"));
  }
  TensorGrid grid;
  grid.mode_ = mode;
  auto& [i, j, k] = grid.sizes_;
  if (mode == TensorMode::k1d) {
    j = num_ranks;
    return grid;
  }
  const auto ranks_of = [&](int64_t side) {
    return side * side * (mode == TensorMode::k3d ? side : depth);
  };
  int64_t q = 1;
  while (ranks_of(q) < num_ranks) ++q;
  if (ranks_of(q) != num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        RuleOf(mode, depth), ", which ", num_ranks, num_ranks == 1 ? " is" : " are", " not: use ",
        q > 1 ? absl::StrCat(ranks_of(q - 1), " or ") : "", ranks_of(q)));
  }
  i = j = q;
  k = mode == TensorMode::k3d ? q : depth;
  if (mode == TensorMode::k3d) {
    grid.strides_ = {1, q, q * q};
  } else {
    grid.strides_ = {q, 1, q * q};
  }
  return grid;
}

int64_t TensorGrid::coordinate(int64_t place, TensorAxis axis) const {
  return place / strides_[static_cast<size_t>(axis)] % size(axis);
}

std::vector<int64_t> TensorGrid::LineOf(int64_t place, TensorAxis axis) const {
  const int64_t stride = strides_[static_cast<size_t>(axis)];
  const int64_t first = place - coordinate(place, axis) * stride;
  std::vector<int64_t> line;
  for (int64_t at = 0; at < size(axis); ++at) line.push_back(first + at * stride);
  return line;
}

}  // namespace gemini::policies
