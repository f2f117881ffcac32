// SPDX-License-Identifier: Apache-2.0
// The slots of DEVICE while a plan is made: who is in each one, since when a free one is free, and where
// a run of adjacent ones is best had.
// Rules:  oldest first takes what has been free for longest, so that a fetch may begin early. Otherwise
//         runs come from the bottom and single chunks from the top, so that these do not split the room
//         for runs. Slots that are reserved come last for single chunks.
// Units:  slots from 0; ranges by index.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

namespace gemini::policies {

class PlannedSlots {
 public:
  static constexpr int32_t kNobody = -1;

  PlannedSlots(int32_t num_slots, bool oldest_first);

  // Marks `slot` to be taken by another than its owner only when nothing else is free. Before it is used.
  void Reserve(int32_t slot);

  // Takes a single free slot; there is one. O(log slots).
  int32_t TakeSingle(int32_t range);
  // Takes [first, first + count), all free.
  void Take(int32_t first, int32_t count, int32_t range);
  // Frees [first, first + count): nobody is there after the interval `since`.
  void Free(int32_t first, int32_t count, int32_t since);

  // What it takes to clear a range's slots.
  struct Clearing {
    int64_t cost = 0;  // Negative: it must stay.
    int32_t last = 0;  // The interval of its last use.
  };
  // Finds the run of `count` slots that is cheapest to clear; of equals, the one that is free or unused
  // for longest, or the lowest. -1: there is none. O(ranges there and free slots).
  template <
      typename ClearingOf>  // Clearing(int32_t range); inlined, for it is asked for every range.
  int32_t FindRun(int32_t count, ClearingOf&& clearing_of);

  bool IsFree(int32_t first, int32_t count) const;
  int32_t occupant(int32_t slot) const { return occupants_[slot]; }
  int32_t num_slots() const { return static_cast<int32_t>(occupants_.size()); }
  int32_t num_used() const { return num_used_; }

 private:
  struct FreeSlot {
    bool reserved;
    int32_t since;
    int32_t slot;
    int32_t stamp;
    bool operator>(const FreeSlot& other) const {
      if (reserved != other.reserved) return reserved;
      if (since != other.since) return since > other.since;
      return slot < other.slot;
    }
  };
  // A range, or a free slot, of those that FindRun looks at.
  struct Seen {
    int32_t first;
    int32_t last;  // Interval.
    int64_t cost;
  };
  void PushFree(int32_t slot, int32_t since);
  // Of cheapest_, the one whose latest interval is the first. O(seen_).
  int32_t LeftLongestAgo(int32_t count);

  const bool oldest_first_;
  std::vector<int32_t> occupants_;
  std::vector<int32_t> counts_;  // By an occupant's first slot: how many it has.
  std::vector<int32_t> since_;   // Of a free slot: nobody was there after this interval.
  std::vector<int32_t> stamps_;  // Of the newest entry in free_: others are void.
  std::vector<bool> reserved_;
  std::priority_queue<FreeSlot, std::vector<FreeSlot>, std::greater<FreeSlot>> free_;
  int32_t num_used_ = 0;
  // Of one FindRun, kept for their memory.
  std::vector<Seen> seen_;         // All that is there, from slot 0 on.
  std::vector<int32_t> cheapest_;  // The runs of least cost, by where in seen_ they begin.
  std::vector<int32_t> latest_;
};

template <typename ClearingOf>
int32_t PlannedSlots::FindRun(int32_t count, ClearingOf&& clearing_of) {
  // A run that begins inside a range touches nobody less when it begins where the range does. So only
  // those that begin with seen[i], for some i, are looked at.
  seen_.resize(num_slots());
  Seen* const seen = seen_.data();
  int32_t num_seen = 0;
  cheapest_.clear();
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  int64_t cost = 0;    // Of the run that begins with seen[lowest].
  int32_t lowest = 0;  // Behind the last that must stay.
  for (int32_t slot = 0; slot < num_slots();) {
    const int32_t range = occupants_[slot];
    Seen& at = seen[num_seen++];
    if (range == kNobody) {
      at = {.first = slot, .last = since_[slot], .cost = 0};
      ++slot;
    } else {
      const Clearing clearing = clearing_of(range);
      at = {.first = slot, .last = clearing.last, .cost = clearing.cost};
      slot += counts_[slot];
    }
    if (at.cost < 0) {
      lowest = num_seen;
      cost = 0;
      continue;
    }
    cost += at.cost;
    for (; lowest < num_seen && seen[lowest].first + count <= slot; ++lowest) {
      if (cost <= best_cost) {
        if (cost < best_cost) cheapest_.clear();
        best_cost = cost;
        cheapest_.push_back(lowest);
      }
      cost -= seen[lowest].cost;
    }
  }
  seen_.resize(num_seen);
  if (cheapest_.empty()) return -1;
  if (!oldest_first_ || cheapest_.size() == 1) return seen_[cheapest_.front()].first;
  return seen_[LeftLongestAgo(count)].first;
}

}  // namespace gemini::policies
