// SPDX-License-Identifier: Apache-2.0
// The slots of DEVICE in a simulation: which ones each range has, since when a slot is vacated, and
// how many are in use.
// Units: slots; nanoseconds since the first round's beginning; ranges and positions by index.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/plan/plan.h"

namespace gemini::policies {

class SimulatedSlots {
 public:
  // Plan::initial is in its slots. `plan` outlives this.
  explicit SimulatedSlots(const Plan& plan);

  bool holds(int32_t range) const { return slot_of_[range] != kNone; }
  // Returns when the range's last eviction ended, or 0 if it was never evicted.
  int64_t left_ns(int32_t range) const { return left_ns_[range]; }
  // Returns when the last of the slots that the range needs, from `first` on, is vacated.
  int64_t VacatedNs(int32_t range, SlotId first) const;

  // Occupies the range's slots, from `first` on, in the interval of `position`.
  void Take(int32_t range, SlotId first, int32_t position);
  // Vacates the range's slots at `ns`, in the interval of `position`.
  void Vacate(int32_t range, int64_t ns, int32_t position);

  int64_t used() const { return used_; }
  // Returns how many slots were taken since the last call. A slot that was vacated in the same
  // interval is not counted, because a slot that changes hands counts once.
  int64_t TakeFresh();
  // Begins a round. Slots that were vacated in the round before count in no interval of this one.
  void BeginRound();

 private:
  static constexpr int64_t kNone = -1;
  struct Vacated {
    int64_t ns = 0;
    int32_t position = -1;  // In whose interval of the round under way.
  };

  const Plan& plan_;
  std::vector<int64_t> slot_of_;  // By range; kNone: not on DEVICE.
  std::vector<int64_t> left_ns_;  // By range.
  std::vector<Vacated> vacated_;  // By slot.
  int64_t used_ = 0;
  int64_t fresh_ = 0;
};

}  // namespace gemini::policies
