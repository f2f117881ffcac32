// SPDX-License-Identifier: Apache-2.0
// Keeps a row of numbers, adds to all numbers of a stretch, and finds the last number in a stretch
// that is above a bound. Both take O(log size).
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gemini::policies {

class RangeMaxTree {
 public:
  explicit RangeMaxTree(absl::Span<const int32_t> values);

  // Adds `value` to those of [first, end), within the row.
  void Add(int32_t first, int32_t end, int32_t value) { Add(1, 0, width_, first, end, value); }

  // Returns the last index of [first, end) whose value is above `bound`, or -1.
  int32_t LastAbove(int32_t first, int32_t end, int32_t bound) const {
    return LastAbove(1, 0, width_, first, end, bound);
  }

 private:
  // Node i has the children 2 i and 2 i + 1. A node's maximum leaves out what was added to its
  // parents.
  struct Node {
    int32_t max = 0;
    int32_t added = 0;  // Added to all below it, and already in `max`.
  };
  void Add(int32_t node, int32_t from, int32_t to, int32_t first, int32_t end, int32_t value);
  int32_t LastAbove(int32_t node, int32_t from, int32_t to, int32_t first, int32_t end,
                    int32_t bound) const;

  int32_t width_;  // A power of two.
  std::vector<Node> nodes_;
};

}  // namespace gemini::policies
