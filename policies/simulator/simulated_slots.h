// SPDX-License-Identifier: Apache-2.0
// Tracks the slots of DEVICE in a simulation: which ones each range has, since when a slot is
// vacated, how many are in use, and when there is room.
// Room: a range that leaves holds its slots until its write-back has ended, and an incoming range
// holds none before its copy begins. Non-model data shares the budget, so an operator can wait for
// slots that no fetch wants.
// Units: slots; nanoseconds since the first round's beginning; ranges and positions by index.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "gemini/plan/plan.h"
#include "policies/simulator/simulated_time.h"

namespace gemini::policies {

class SimulatedSlots {
 public:
  // Plan::initial is in its slots. The arguments outlive this.
  SimulatedSlots(const Plan& plan, const SimulatedTime& time);

  bool holds(int32_t range) const { return slot_of_[range] != kNone; }
  // Returns when the range's last eviction ended, or 0 if it was never evicted.
  int64_t left_ns(int32_t range) const { return left_ns_[range]; }
  // Returns when the last of the slots that the range needs, from `first` on, is vacated.
  int64_t VacatedNs(int32_t range, SlotId first) const;

  // Occupies the range's slots, from `first` on. They hold room from BeginCopy on.
  void Take(int32_t range, SlotId first);
  // Says when the copy begins for which the range's slots were taken.
  void BeginCopy(int32_t range, int64_t ns);
  // Vacates the range's slots at `ns`. Of calls for a moment ahead, none is for an earlier one than
  // the call before.
  void Vacate(int32_t range, int64_t ns);

  int64_t used() const { return used_; }
  // Returns how many slots were taken since the last call. A slot that was vacated in the same
  // interval is not counted, because a slot that changes hands counts once.
  int64_t TakeFresh();
  // Begins a round. Slots that were vacated in the round before count in no interval of this one.
  void BeginRound();

  // Returns the first moment from `from_ns` on when at most `most_slots` are held; if that is
  // never, when the last one has left. It forgets what began or left by then, so it is not asked
  // about an earlier moment afterwards. O(log slots), amortised.
  int64_t FitNs(int64_t most_slots, int64_t from_ns);
  // Returns the first moment from now on when at most `most_slots` are held, for a copy that begins
  // after all for which BeginCopy was called, whenever these begin. What waits for its BeginCopy
  // counts as nothing. O(log slots).
  int64_t FitNextNs(int64_t most_slots) const;

 private:
  static constexpr int64_t kNone = -1;
  struct Vacated {
    int64_t ns = 0;
    int32_t position = -1;  // In whose interval of the round under way.
  };
  struct Leaving {
    int64_t ns = 0;
    int64_t total = 0;  // The slots of this one and of all before it.
  };
  using Incoming = std::pair<int64_t, int64_t>;  // When, and how many slots.

  // Brings held_ up to the moment.
  void Advance(int64_t ns);

  const Plan& plan_;
  const SimulatedTime& time_;
  std::vector<int64_t> slot_of_;  // By range; kNone: not on DEVICE.
  std::vector<int64_t> left_ns_;  // By range.
  std::vector<Vacated> vacated_;  // By slot.
  int64_t used_ = 0;
  int64_t fresh_ = 0;
  int64_t waiting_ = 0;  // Slots of `used_` whose copy has no beginning yet.
  // What is held at the last moment that FitNs returned, and what lies ahead of that.
  int64_t held_ = 0;
  std::priority_queue<Incoming, std::vector<Incoming>, std::greater<>> incoming_;
  std::deque<Leaving> leaving_;
  int64_t leaving_total_ = 0;  // Slots of all that was ever added to leaving_,
  int64_t left_total_ = 0;     // and of what was taken from there.
};

}  // namespace gemini::policies
