// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/free_runs.h"

#include <algorithm>

namespace gemini::policies {

FreeRuns::FreeRuns(int32_t num_slots) {
  while (width_ < num_slots) width_ *= 2;
  nodes_.resize(2 * static_cast<size_t>(width_));
  Set(0, num_slots, true);
}

void FreeRuns::Set(int32_t first, int32_t count, bool is_free) {
  const int32_t free = is_free ? 1 : 0;
  std::fill_n(nodes_.begin() + width_ + first, count, Node{free, free, free});
  int32_t begin = width_ + first, end = begin + count;  // Nodes of one level, those that changed.
  for (int32_t half = 1; begin > 1 && begin < end; half *= 2) {
    begin /= 2;
    end = (end + 1) / 2;
    int32_t first_changed = end, end_changed = begin;
    for (int32_t node = begin; node < end; ++node) {
      const Node& left = nodes_[2 * node];
      const Node& right = nodes_[2 * node + 1];
      const Node made = {
          .prefix = left.prefix == half ? half + right.prefix : left.prefix,
          .suffix = right.suffix == half ? half + left.suffix : right.suffix,
          .longest = std::max({left.longest, right.longest, left.suffix + right.prefix})};
      if (made == nodes_[node]) continue;
      nodes_[node] = made;
      first_changed = std::min(first_changed, node);
      end_changed = node + 1;
    }
    begin = first_changed;
    end = end_changed;
  }
}

int32_t FreeRuns::Find(int32_t from, int32_t count) const {
  int32_t open = 0;
  return FindIn(1, 0, width_, from, count, open);
}

int32_t FreeRuns::FindIn(int32_t node, int32_t begin, int32_t length, int32_t from, int32_t count,
                         int32_t& open) const {
  const Node& at = nodes_[node];
  if (begin + length <= from || at.longest == 0) {
    open = 0;
    return -1;
  }
  if (begin >= from) {
    if (open + at.prefix >= count) return begin - open;
    if (at.longest < count) {
      open = at.longest == length ? open + length : at.suffix;
      return -1;
    }
  }
  const int32_t half = length / 2;
  const int32_t found = FindIn(2 * node, begin, half, from, count, open);
  if (found >= 0) return found;
  return FindIn(2 * node + 1, begin + half, half, from, count, open);
}

}  // namespace gemini::policies
