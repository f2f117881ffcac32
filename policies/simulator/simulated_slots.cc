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
  waiting_ += count;
  slot_of_[range] = first.value();
}

void SimulatedSlots::BeginCopy(int32_t range, int64_t ns) {
  const int64_t count = plan_.ranges[range].num_bundles;
  waiting_ -= count;
  coming_.Add({ns, count});
}

void SimulatedSlots::Vacate(int32_t range, int64_t ns, int32_t position) {
  const int64_t count = plan_.ranges[range].num_bundles;
  std::fill_n(vacated_.begin() + slot_of_[range], count, Vacated{ns, position});
  used_ -= count;
  slot_of_[range] = kNone;
  left_ns_[range] = ns;
  leaving_.Add({ns, count});
}

int64_t SimulatedSlots::TakeFresh() { return std::exchange(fresh_, 0); }

void SimulatedSlots::BeginRound() {
  for (Vacated& slot : vacated_) slot.position = -1;
}

void SimulatedSlots::Changes::Add(Change change) {
  // Links are queues, so it is mostly the last one.
  const auto later = std::find_if(ahead.rbegin(), ahead.rend(),
                                  [&](const Change& other) { return other.ns <= change.ns; });
  ahead.insert(later.base(), change);
  slots += change.slots;
}

void SimulatedSlots::Changes::DropUntil(int64_t ns) {
  for (; !ahead.empty() && ahead.front().ns <= ns; ahead.pop_front()) slots -= ahead.front().slots;
}

int64_t SimulatedSlots::FitNs(int64_t most_slots, int64_t now_ns) {
  coming_.DropUntil(now_ns);
  leaving_.DropUntil(now_ns);
  int64_t held = used_ - waiting_ - coming_.slots + leaving_.slots;
  int64_t fits_ns = now_ns;
  auto coming = coming_.ahead.begin();
  for (auto leaving = leaving_.ahead.begin(); held > most_slots && leaving != leaving_.ahead.end();
       ++leaving) {
    fits_ns = leaving->ns;
    held -= leaving->slots;
    for (; coming != coming_.ahead.end() && coming->ns <= fits_ns; ++coming) held += coming->slots;
  }
  return fits_ns;
}

int64_t SimulatedSlots::FitNextNs(int64_t most_slots, int64_t now_ns) {
  leaving_.DropUntil(now_ns);
  int64_t held = used_ - waiting_ + leaving_.slots;
  int64_t fits_ns = now_ns;
  for (auto leaving = leaving_.ahead.begin(); held > most_slots && leaving != leaving_.ahead.end();
       ++leaving) {
    fits_ns = leaving->ns;
    held -= leaving->slots;
  }
  return fits_ns;
}

}  // namespace gemini::policies
