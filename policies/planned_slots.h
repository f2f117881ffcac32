// SPDX-License-Identifier: Apache-2.0
// The slots of DEVICE while a plan is made: who is in each one, since when a free one is free, and where
// a run of adjacent ones is best had.
// Rules:  oldest first takes what has been free for longest, so that a fetch may begin early. Otherwise
//         runs come from the bottom and single chunks from the top, so that these do not split the room
//         for runs. Slots that are reserved come last for single chunks.
// Units:  slots from 0; ranges by index.
#pragma once
#include <algorithm>
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
      typename ClearingOf>  // Clearing(int32_t range); inlined, for it is asked of many ranges.
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
  // What `slot` belongs to.
  template <typename ClearingOf>
  Seen SeenAt(int32_t slot, ClearingOf&& clearing_of) const;
  int32_t EndOf(int32_t first) const {
    return first + (occupants_[first] == kNobody ? 1 : counts_[first]);
  }
  // As FindRun, of the runs that cost nothing. Looks at each from its end, for what rules a run out rules all out
  // that contain it: most are never looked at.
  template <typename ClearingOf>
  int32_t FindIdleRun(int32_t count, ClearingOf&& clearing_of) const;
  // Of cheapest_, the one whose latest interval is the first. O(seen_).
  int32_t LeftLongestAgo(int32_t count);

  const bool oldest_first_;
  std::vector<int32_t> occupants_;
  std::vector<int32_t> firsts_;  // Of an occupied slot: its occupant's first.
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
PlannedSlots::Seen PlannedSlots::SeenAt(int32_t slot, ClearingOf&& clearing_of) const {
  const int32_t range = occupants_[slot];
  if (range == kNobody) return {.first = slot, .last = since_[slot], .cost = 0};
  const Clearing clearing = clearing_of(range);
  return {.first = firsts_[slot], .last = clearing.last, .cost = clearing.cost};
}

template <typename ClearingOf>
int32_t PlannedSlots::FindIdleRun(int32_t count, ClearingOf&& clearing_of) const {
  int32_t best = -1;
  int32_t best_last = std::numeric_limits<int32_t>::max();
  for (int32_t first = 0; first + count <= num_slots();) {
    int32_t last = std::numeric_limits<int32_t>::min();
    int32_t ruled_out = first - 1;
    for (int32_t slot = first + count - 1; slot >= first;) {
      const Seen at = SeenAt(slot, clearing_of);
      if (at.cost != 0 || (oldest_first_ && best >= 0 && at.last >= best_last)) {
        ruled_out = at.first;
        break;
      }
      last = std::max(last, at.last);
      slot = at.first - 1;
    }
    if (ruled_out >= first) {
      first = EndOf(ruled_out);
      continue;
    }
    best = first;
    best_last = last;
    if (!oldest_first_ || last == std::numeric_limits<int32_t>::min()) break;  // None is better.
    first = EndOf(first);
  }
  return best;
}

template <typename ClearingOf>
int32_t PlannedSlots::FindRun(int32_t count, ClearingOf&& clearing_of) {
  if (const int32_t idle = FindIdleRun(count, clearing_of); idle >= 0) return idle;
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
    Seen& at = seen[num_seen++];
    at = SeenAt(slot, clearing_of);
    slot = EndOf(slot);
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
