// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/range_max_tree.h"

#include <algorithm>
#include <limits>

namespace gemini::policies {

RangeMaxTree::RangeMaxTree(absl::Span<const int32_t> values) : width_(1) {
  while (width_ < static_cast<int32_t>(values.size())) width_ *= 2;
  nodes_.resize(2 * static_cast<size_t>(width_));
  for (int32_t i = 0; i < width_; ++i) {
    nodes_[width_ + i].max = i < static_cast<int32_t>(values.size())
                                 ? values[i]
                                 : std::numeric_limits<int32_t>::min() / 2;
  }
  for (int32_t i = width_ - 1; i > 0; --i) {
    nodes_[i].max = std::max(nodes_[2 * i].max, nodes_[2 * i + 1].max);
  }
}

void RangeMaxTree::Add(int32_t node, int32_t from, int32_t to, int32_t first, int32_t end,
                       int32_t value) {
  if (first >= to || end <= from) return;
  if (first <= from && to <= end) {
    nodes_[node].max += value;
    nodes_[node].added += value;
    return;
  }
  const int32_t middle = from + (to - from) / 2;
  Add(2 * node, from, middle, first, end, value);
  Add(2 * node + 1, middle, to, first, end, value);
  nodes_[node].max = std::max(nodes_[2 * node].max, nodes_[2 * node + 1].max) + nodes_[node].added;
}

int32_t RangeMaxTree::LastAbove(int32_t node, int32_t from, int32_t to, int32_t first, int32_t end,
                                int32_t bound) const {
  if (first >= to || end <= from || nodes_[node].max <= bound) return -1;
  if (to - from == 1) return from;
  const int32_t middle = from + (to - from) / 2;
  const int32_t below = bound - nodes_[node].added;
  const int32_t right = LastAbove(2 * node + 1, middle, to, first, end, below);
  return right >= 0 ? right : LastAbove(2 * node, from, middle, first, end, below);
}

}  // namespace gemini::policies
