// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/simulated_slots.h"

#include <algorithm>
#include <utility>

namespace gemini::policies {

SimulatedSlots::SimulatedSlots(const Plan& plan, const SimulatedTime& time)
    : plan_(plan),
      time_(time),
      slot_of_(plan.ranges.size(), kNone),
      left_ns_(plan.ranges.size(), 0) {
  int64_t num_slots = 0;
  const auto cover = [&](int32_t range, SlotId slot) {
    num_slots = std::max(num_slots, slot.value() + plan.ranges[range].num_bundles);
  };
  for (const PlannedResident& at : plan.initial) {
    cover(at.range, at.slot);
    slot_of_[at.range] = at.slot.value();
    used_ += plan.ranges[at.range].num_bundles;
  }
  held_ = used_;
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

void SimulatedSlots::Take(int32_t range, SlotId first) {
  const int64_t count = plan_.ranges[range].num_bundles;
  for (int64_t i = 0; i < count; ++i) {
    if (vacated_[first.value() + i].position != time_.position) ++fresh_;
  }
  used_ += count;
  waiting_ += count;
  slot_of_[range] = first.value();
}

void SimulatedSlots::BeginCopy(int32_t range, int64_t ns) {
  const int64_t count = plan_.ranges[range].num_bundles;
  waiting_ -= count;
  incoming_.push({ns, count});
}

void SimulatedSlots::Vacate(int32_t range, int64_t ns) {
  const int64_t count = plan_.ranges[range].num_bundles;
  std::fill_n(vacated_.begin() + slot_of_[range], count, Vacated{ns, time_.position});
  used_ -= count;
  slot_of_[range] = kNone;
  left_ns_[range] = ns;
  if (ns <= time_.now_ns) {
    held_ -= count;
    return;
  }
  leaving_total_ += count;
  leaving_.push_back({ns, leaving_total_});
}

int64_t SimulatedSlots::TakeFresh() { return std::exchange(fresh_, 0); }

void SimulatedSlots::BeginRound() {
  for (Vacated& slot : vacated_) slot.position = -1;
}

void SimulatedSlots::Advance(int64_t ns) {
  for (; !incoming_.empty() && incoming_.top().first <= ns; incoming_.pop()) {
    held_ += incoming_.top().second;
  }
  for (; !leaving_.empty() && leaving_.front().ns <= ns; leaving_.pop_front()) {
    held_ -= leaving_.front().total - left_total_;
    left_total_ = leaving_.front().total;
  }
}

int64_t SimulatedSlots::FitNs(int64_t most_slots, int64_t from_ns) {
  int64_t fits_ns = from_ns;
  Advance(fits_ns);
  while (held_ > most_slots && !leaving_.empty()) {
    fits_ns = leaving_.front().ns;
    Advance(fits_ns);
  }
  return fits_ns;
}

int64_t SimulatedSlots::FitNextNs(int64_t most_slots) const {
  const int64_t most_leaving = most_slots - (used_ - waiting_);
  if (leaving_.empty() || leaving_total_ - left_total_ <= most_leaving) return time_.now_ns;
  const auto fits = std::ranges::partition_point(
      leaving_, [&](const Leaving& next) { return leaving_total_ - next.total > most_leaving; });
  return std::max(time_.now_ns, fits == leaving_.end() ? leaving_.back().ns : fits->ns);
}

}  // namespace gemini::policies
