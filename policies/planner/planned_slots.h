// SPDX-License-Identifier: Apache-2.0
// Tracks the slots of DEVICE while a plan is made: which range is in each, since when a free slot
// is free, and where runs of adjacent free slots are.
// Rules: with `oldest_first` a range takes the slot that has been free for longest, so that a fetch
// may begin early. Single chunks follow that exactly, runs by going around the slots in a circle
// (next fit). Otherwise runs are taken from the bottom and single chunks from the top, so that
// these do not split the room for runs. Reserved slots are the last choice for single chunks.
// Units: slots from 0; ranges by index.
// Source: next fit, in Knuth, The Art of Computer Programming 1, section 2.5.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "policies/planner/free_runs.h"

namespace gemini::policies {

class PlannedSlots {
 public:
  static constexpr int32_t kNobody = -1;

  // `has_runs`: FindFree will be called.
  PlannedSlots(int32_t num_slots, bool oldest_first, bool has_runs);

  // Reserves `slot`, so that another range takes it only when nothing else is free. Call it before
  // the slot is used.
  void Reserve(int32_t slot);

  // Takes a single free slot and returns it; there is one. O(log slots).
  int32_t TakeSingle(int32_t range);
  // Takes [first, first + count), all free.
  void Take(int32_t first, int32_t count, int32_t range);
  // Frees [first, first + count), which are unused after the interval `since`.
  void Free(int32_t first, int32_t count, int32_t since);

  // Returns the first of `count` adjacent free slots, as the rules say, or -1. O(log slots).
  int32_t FindFree(int32_t count);

  int32_t occupant(int32_t slot) const { return occupants_[slot]; }
  // Return where the occupant of `slot`, a range or one free slot, begins and ends.
  int32_t BeginAt(int32_t slot) const { return occupants_[slot] == kNobody ? slot : firsts_[slot]; }
  int32_t EndAt(int32_t slot) const {
    return occupants_[slot] == kNobody ? slot + 1 : firsts_[slot] + counts_[firsts_[slot]];
  }
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
  void PushFree(int32_t slot, int32_t since);

  const bool oldest_first_;
  const bool has_runs_;
  std::vector<int32_t> occupants_;
  std::vector<int32_t> firsts_;  // By occupied slot: its occupant's first slot.
  std::vector<int32_t> counts_;  // By an occupant's first slot: how many it has.
  // By slot: stamp of its newest entry in free_; other entries are void.
  std::vector<int32_t> stamps_;
  std::vector<bool> reserved_;
  std::priority_queue<FreeSlot, std::vector<FreeSlot>, std::greater<FreeSlot>> free_;
  FreeRuns runs_;
  int32_t next_run_ = 0;  // The slot behind the run that was found last.
  int32_t num_used_ = 0;
};

}  // namespace gemini::policies
