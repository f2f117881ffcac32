// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/mesh.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gemini::policies {
namespace {

constexpr std::array<absl::string_view, kNumMeshAxes> kNames = {"pp", "dp", "sp", "tp"};

std::optional<MeshAxis> AxisOf(absl::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<MeshAxis>(found - kNames.begin());
}

}  // namespace

absl::string_view MeshAxisName(MeshAxis axis) { return kNames[static_cast<size_t>(axis)]; }

absl::StatusOr<MeshOrder> ParseMeshOrder(absl::string_view text) {
  const std::vector<absl::string_view> names = absl::StrSplit(text, ',');
  MeshOrder order = kDefaultMeshOrder;
  std::array<bool, kNumMeshAxes> seen = {};
  bool is_whole = names.size() == order.size();
  for (size_t i = 0; is_whole && i < order.size(); ++i) {
    const std::optional<MeshAxis> axis = AxisOf(names[i]);
    is_whole = axis.has_value() && !seen[static_cast<size_t>(*axis)];
    if (!is_whole) break;
    order[i] = *axis;
    seen[static_cast<size_t>(*axis)] = true;
  }
  if (is_whole) return order;
  return absl::InvalidArgumentError(absl::StrCat("an order of ranks \"", text, "\": name each of ",
                                                 absl::StrJoin(kNames, ", "),
                                                 " once, the slowest first, as in pp,dp,sp,tp"));
}

absl::StatusOr<Mesh> Mesh::Make(int64_t num_ranks, const MeshSizes& sizes, const MeshOrder& order) {
  Mesh mesh;
  mesh.num_ranks_ = num_ranks;
  mesh.order_ = order;
  mesh.sizes_ = {sizes.pipeline, 1, sizes.sequence, sizes.tensor};
  int64_t product = 1;
  std::string spelled;
  for (const MeshAxis axis : order) {
    if (axis == MeshAxis::kData) continue;
    const int64_t size = mesh.size(axis);
    absl::StrAppend(&spelled, spelled.empty() ? "" : " x ", MeshAxisName(axis), " ", size);
    // 0 from the first size on that cannot be, which no later one changes.
    if (size < 1 || __builtin_mul_overflow(product, size, &product)) product = 0;
  }
  if (num_ranks < 1) product = 0;
  if (product == 0 || num_ranks % product != 0) {
    const int64_t fewer = product > 0 ? num_ranks - num_ranks % product : 0;
    return absl::InvalidArgumentError(absl::StrCat(
        num_ranks, num_ranks == 1 ? " rank does" : " ranks do", " not divide into ", spelled,
        product > 0
            ? absl::StrCat(" = ", product, ": start ", fewer > 0 ? absl::StrCat(fewer, " or ") : "",
                           fewer + product, " ranks")
            : ": start a multiple of their product",
        ", or change these sizes, all of which are at least 1"));
  }
  mesh.sizes_[static_cast<size_t>(MeshAxis::kData)] = num_ranks / product;
  int64_t stride = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    mesh.strides_[static_cast<size_t>(*axis)] = stride;
    stride *= mesh.size(*axis);
  }
  return mesh;
}

int64_t Mesh::coordinate(int64_t rank, MeshAxis axis) const {
  return rank / strides_[static_cast<size_t>(axis)] % size(axis);
}

std::vector<int64_t> Mesh::GroupOf(int64_t rank, absl::Span<const MeshAxis> axes) const {
  int64_t first = rank;
  for (const MeshAxis axis : axes) {
    first -= coordinate(rank, axis) * strides_[static_cast<size_t>(axis)];
  }
  std::vector<int64_t> group = {first};
  // A faster axis is counted through for each coordinate of the slower ones.
  for (const MeshAxis axis : order_) {
    if (std::ranges::find(axes, axis) == axes.end()) continue;
    std::vector<int64_t> longer;
    for (const int64_t member : group) {
      for (int64_t i = 0; i < size(axis); ++i) {
        longer.push_back(member + i * strides_[static_cast<size_t>(axis)]);
      }
    }
    group = std::move(longer);
  }
  return group;
}

std::vector<std::vector<int64_t>> Mesh::Groups(absl::Span<const MeshAxis> axes) const {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < num_ranks_; ++rank) {
    std::vector<int64_t> group = GroupOf(rank, axes);
    if (group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

std::string Mesh::ToString() const {
  return absl::StrJoin(order_, " x ", [this](std::string* out, MeshAxis axis) {
    absl::StrAppend(out, MeshAxisName(axis), " ", size(axis));
  });
}

}  // namespace gemini::policies
