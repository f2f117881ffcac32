// SPDX-License-Identifier: Apache-2.0
// Keeps a list of some of the ids from 0 to size - 1, ordered by their last use. All functions
// except Grow are O(1) and allocate nothing.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/system/check.h"

namespace gemini::client {

class LruList {
 public:
  static constexpr int64_t kNone = -1;

  explicit LruList(int64_t size) : nodes_(size) {}
  // Raises the size by one; the new id is not in the list.
  void Grow() { nodes_.emplace_back(); }

  // Adds `id`, which is not in the list, as the most recently used.
  void Add(int64_t id) {
    Node& node = nodes_[id];
    GEMINI_CHECK(!node.listed);
    node = {.older = newest_, .newer = kNone, .listed = true};
    (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = id;
    newest_ = id;
  }
  // Takes `id` out of the list.
  void Remove(int64_t id) {
    Node& node = nodes_[id];
    GEMINI_CHECK(node.listed);
    (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
    (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
    node = {};
  }

  // Return the least recently used id, or kNone if the list is empty; and the next newer one after
  // a listed id, or kNone after the newest.
  int64_t oldest() const { return oldest_; }
  int64_t newer(int64_t id) const { return nodes_[id].newer; }
  bool contains(int64_t id) const { return nodes_[id].listed; }

 private:
  struct Node {
    int64_t older = kNone;
    int64_t newer = kNone;
    bool listed = false;
  };
  std::vector<Node> nodes_;
  int64_t oldest_ = kNone;
  int64_t newest_ = kNone;
};

}  // namespace gemini::client
