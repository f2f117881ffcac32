// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/simulated_slots.h"

#include <algorithm>
#include <utility>

namespace gemini::policies {

SimulatedSlots::SimulatedSlots(const Plan& plan)
    : plan_(plan), slot_of_(plan.ranges.size(), kNone), left_ns_(plan.ranges.size(), 0) {
  int64_t num_slots = 0;
  const auto cover = [&](int32_t range, SlotId slot) {
    num_slots = std::max(num_slots, slot.value() + plan.ranges[range].num_bundles);
  };
  for (const PlannedResident& at : plan.initial) {
    cover(at.range, at.slot);
    slot_of_[at.range] = at.slot.value();
    used_ += plan.ranges[at.range].num_bundles;
  }
  for (const PlannedFetch& fetch : plan.fetches) cover(fetch.range, fetch.slot);
  vacated_.assign(num_slots, {});
}

int64_t SimulatedSlots::VacatedNs(int32_t range, SlotId first) const {
  int64_t last_ns = 0;
  for (int64_t i = 0; i < plan_.ranges[range].num_bundles; ++i) {
    last_ns = std::max(last_ns, vacated_[first.value() + i].ns);
  }
  return last_ns;
}

void SimulatedSlots::Take(int32_t range, SlotId first, int32_t position) {
  const int64_t count = plan_.ranges[range].num_bundles;
  for (int64_t i = 0; i < count; ++i) {
    if (vacated_[first.value() + i].position != position) ++fresh_;
  }
  used_ += count;
  slot_of_[range] = first.value();
}

void SimulatedSlots::Vacate(int32_t range, int64_t ns, int32_t position) {
  const int64_t count = plan_.ranges[range].num_bundles;
  std::fill_n(vacated_.begin() + slot_of_[range], count, Vacated{ns, position});
  used_ -= count;
  slot_of_[range] = kNone;
  left_ns_[range] = ns;
}

int64_t SimulatedSlots::TakeFresh() { return std::exchange(fresh_, 0); }

void SimulatedSlots::BeginRound() {
  for (Vacated& slot : vacated_) slot.position = -1;
}

}  // namespace gemini::policies
