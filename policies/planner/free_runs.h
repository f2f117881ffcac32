// SPDX-License-Identifier: Apache-2.0
// Tracks which slots are free and finds runs of adjacent free ones. It is a segment tree whose
// nodes have the longest free run inside them and the runs at their two ends.
#pragma once
#include <cstdint>
#include <vector>

namespace gemini::policies {

class FreeRuns {
 public:
  // All of `num_slots` (>= 0) slots are free.
  explicit FreeRuns(int32_t num_slots);

  // Marks [first, first + count) as free or taken. O(count + log slots), and less where nothing
  // longer changes.
  void Set(int32_t first, int32_t count, bool is_free);

  // Returns the lowest slot >= `from` at which `count` (> 0) free slots begin, or -1. O(log slots).
  int32_t Find(int32_t from, int32_t count) const;

 private:
  struct Node {
    int32_t prefix = 0;   // Free slots at its beginning,
    int32_t suffix = 0;   // at its end,
    int32_t longest = 0;  // and in its longest run.
    bool operator==(const Node&) const = default;
  };
  // Looks for the run in the node's slots, [begin, begin + length). `open` is the number of free
  // slots, none below `from`, right before them; on return, the number at their end.
  int32_t FindIn(int32_t node, int32_t begin, int32_t length, int32_t from, int32_t count,
                 int32_t& open) const;

  int32_t width_ = 1;  // Number of leaves; a power of two.
  // The children of node i are 2 i and 2 i + 1; the leaf of slot i is width_ + i.
  std::vector<Node> nodes_;
};

}  // namespace gemini::policies
