// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "policies/next_uses.h"

namespace gemini::policies {
namespace {

constexpr int64_t kElementBytes = 4;
// The first round finds `initial` there; a second or third one is like all that follow.
constexpr int kMostRounds = 6;

int64_t NsFor(int64_t amount, double rate) {
  return static_cast<int64_t>(std::llround(static_cast<double>(amount) * 1e9 / rate));
}

// When something is there or free again, and what it waited for.
struct Moment {
  int64_t ns = 0;
  StallCause cause = StallCause::kTransfer;
};

class Playback {
 public:
  Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs, bool with_events)
      : trace_(trace),
        plan_(plan),
        costs_(costs),
        with_events_(with_events),
        ready_(trace.ranges.size()),
        left_ns_(trace.ranges.size(), 0),
        commit_ns_(trace.ranges.size(), 0),
        slot_of_(trace.ranges.size(), kNobody) {
    int64_t num_slots = 0;
    const auto cover = [&](int32_t range, SlotId slot) {
      num_slots = std::max(num_slots, slot.value() + plan.ranges[range].num_bundles);
    };
    for (const PlannedResident& at : plan.initial) cover(at.range, at.slot);
    for (const PlannedFetch& fetch : plan.fetches) cover(fetch.range, fetch.slot);
    vacated_.assign(num_slots, {});
    for (const PlannedResident& at : plan.initial) {
      slot_of_[at.range] = at.slot.value();
      slots_used_ += plan.ranges[at.range].num_bundles;
    }
    device_bytes_.resize(trace.num_positions());
  }

  // Plays a round; returns how long it took.
  int64_t PlayRound();
  Simulation TakeResult(int64_t round_ns);

 private:
  struct Vacated {
    int64_t ns = 0;
    int32_t position = -1;  // In whose interval of the round under way.
  };
  static constexpr int32_t kNobody = -1;

  int64_t CopyNs(int64_t bytes, double rate) const {
    return costs_.copy_latency_ns + NsFor(bytes, rate);
  }
  int64_t BytesOf(int32_t range) const {
    return trace_.ranges[range].num_bundles * trace_.chunk_bytes;
  }
  // 2 p: operator p asks; 2 p + 1: it has ended.
  void BeginFetches(int64_t moment);
  void Fetch(const PlannedFetch& fetch);
  void Compute(int32_t position);
  void LeaveAfter(int32_t position);
  void Vacate(int32_t range, int64_t ns, int32_t position);
  void Update(int32_t position);
  void Record(Lane lane, int32_t subject, int64_t begin_ns, int64_t end_ns, Moment waited_for = {},
              int64_t stall_ns = 0) {
    if (!with_events_) return;
    events_.push_back({lane, subject, begin_ns, end_ns, stall_ns, waited_for.cause});
  }

  const RangeTrace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  const bool with_events_;

  int64_t now_ns_ = 0;  // The last interval's end.
  int64_t round_begin_ns_ = 0;
  int64_t fetch_free_ns_ = 0;  // When each lane is.
  int64_t evict_free_ns_ = 0;
  int64_t update_free_ns_ = 0;
  std::vector<Moment> ready_;       // By range: on DEVICE since.
  std::vector<int64_t> left_ns_;    // By range: its last eviction's end.
  std::vector<int64_t> commit_ns_;  // By range: its last update's.
  std::vector<int64_t> slot_of_;    // By range; kNobody: not on DEVICE.
  std::vector<Vacated> vacated_;    // By slot.
  int64_t slots_used_ = 0;
  int32_t current_position_ = -1;
  int64_t fresh_slots_ = 0;  // Taken in this interval, and by nobody else in it.
  size_t next_fetch_ = 0, next_eviction_ = 0, next_out_ = 0;
  Prediction totals_;
  std::vector<int64_t> device_bytes_;
  std::vector<SimulatedEvent> events_;
};

int64_t Playback::PlayRound() {
  next_fetch_ = next_eviction_ = next_out_ = 0;
  round_begin_ns_ = now_ns_;
  totals_ = {};
  for (Vacated& slot : vacated_) slot.position = -1;
  BeginFetches(-1);
  for (int32_t position = 0; position < trace_.num_positions(); ++position) {
    current_position_ = position;
    BeginFetches(2 * int64_t{position});
    const int64_t used = slots_used_;
    Compute(position);
    LeaveAfter(position);
    fresh_slots_ = 0;
    BeginFetches(2 * int64_t{position} + 1);
    device_bytes_[position] = (used + fresh_slots_) * trace_.chunk_bytes +
                              trace_.operators[position].non_model_peak_bytes;
    totals_.device_peak_bytes = std::max(totals_.device_peak_bytes, device_bytes_[position]);
  }
  return now_ns_ - round_begin_ns_;
}

void Playback::BeginFetches(int64_t moment) {
  for (; next_fetch_ < plan_.fetches.size(); ++next_fetch_) {
    const PlannedFetch& fetch = plan_.fetches[next_fetch_];
    if (2 * int64_t{fetch.after} + (fetch.after == fetch.needed_at ? 0 : 1) > moment) return;
    Fetch(fetch);
  }
}

void Playback::Fetch(const PlannedFetch& fetch) {
  const int64_t count = trace_.ranges[fetch.range].num_bundles;
  Moment begin = {.ns = std::max(fetch_free_ns_, now_ns_)};
  const auto wait_for = [&begin](int64_t ns, StallCause cause) {
    if (ns > begin.ns) begin = {ns, cause};
  };
  wait_for(left_ns_[fetch.range], StallCause::kRoom);
  for (int64_t slot = fetch.slot.value(); slot < fetch.slot.value() + count; ++slot) {
    wait_for(vacated_[slot].ns, StallCause::kRoom);
    if (vacated_[slot].position != current_position_) ++fresh_slots_;
  }
  wait_for(commit_ns_[fetch.range], StallCause::kUpdate);
  const int64_t end_ns = begin.ns + CopyNs(BytesOf(fetch.range), costs_.host_to_device);
  fetch_free_ns_ = end_ns;
  ready_[fetch.range] = {end_ns, begin.cause};
  slot_of_[fetch.range] = fetch.slot.value();
  slots_used_ += count;
  totals_.fetch_bytes += BytesOf(fetch.range);
  Record(Lane::kFetch, fetch.range, begin.ns, end_ns);
}

void Playback::Compute(int32_t position) {
  Moment begin = {.ns = now_ns_};
  const auto wait_for = [&begin](Moment moment) {
    if (moment.ns > begin.ns) begin = moment;
  };
  for (const RangeUse& use : trace_.uses_of(position)) wait_for(ready_[use.range]);
  const bool is_update = plan_.ends_with_update() && position == trace_.num_positions() - 1;
  if (is_update) {
    wait_for({evict_free_ns_, StallCause::kTransfer});
    wait_for({update_free_ns_, StallCause::kUpdate});
  }
  const int64_t stall_ns = begin.ns - now_ns_;
  now_ns_ = begin.ns + trace_.operators[position].compute_ns;
  totals_.compute_ns += trace_.operators[position].compute_ns;
  totals_.stall_ns[static_cast<int>(begin.cause)] += stall_ns;
  Record(Lane::kCompute, position, begin.ns, now_ns_, begin, stall_ns);
  if (is_update) Update(position);
}

void Playback::Vacate(int32_t range, int64_t ns, int32_t position) {
  const int64_t count = trace_.ranges[range].num_bundles;
  std::fill_n(vacated_.begin() + slot_of_[range], count, Vacated{ns, position});
  slots_used_ -= count;
  slot_of_[range] = kNobody;
  left_ns_[range] = ns;
}

void Playback::LeaveAfter(int32_t position) {
  const auto copy_out = [&](int32_t range, int64_t bytes) {
    const int64_t begin_ns = std::max(now_ns_, evict_free_ns_);
    evict_free_ns_ = begin_ns + CopyNs(bytes, costs_.device_to_host);
    totals_.evict_bytes += bytes;
    Record(Lane::kEvict, range, begin_ns, evict_free_ns_);
  };
  for (; next_out_ < trace_.gradient_outs.size() &&
         trace_.gradient_outs[next_out_].position == position;
       ++next_out_) {
    const RangeTrace::GradOut& out = trace_.gradient_outs[next_out_];
    if (slot_of_[out.range] == kNobody) copy_out(out.range, out.size_bytes);
  }
  for (;
       next_eviction_ < plan_.evictions.size() && plan_.evictions[next_eviction_].after == position;
       ++next_eviction_) {
    const PlannedEviction& eviction = plan_.evictions[next_eviction_];
    if (eviction.writes_back) copy_out(eviction.range, BytesOf(eviction.range));
    Vacate(eviction.range, eviction.writes_back ? evict_free_ns_ : now_ns_, position);
  }
}

void Playback::Update(int32_t position) {
  update_free_ns_ = std::max(update_free_ns_, now_ns_);
  for (const int32_t range : plan_.updated) {
    const int64_t begin_ns = update_free_ns_;
    update_free_ns_ += NsFor(BytesOf(range) / kElementBytes, costs_.update_elements_per_second);
    commit_ns_[range] = update_free_ns_;
    Record(Lane::kUpdate, range, begin_ns, update_free_ns_);
    if (slot_of_[range] != kNobody) Vacate(range, now_ns_, position);
  }
}

Simulation Playback::TakeResult(int64_t round_ns) {
  Simulation result;
  result.totals = totals_;
  result.totals.round_ns = round_ns;
  result.totals.device_floor_bytes = LargestOperatorBytes(trace_);
  if (!with_events_) return result;
  // Those of the last round, and those of the round before that it sees begin.
  for (SimulatedEvent event : events_) {
    if (event.begin_ns < round_begin_ns_ || event.begin_ns >= now_ns_) continue;
    event.begin_ns -= round_begin_ns_;
    event.end_ns -= round_begin_ns_;
    result.events.push_back(event);
  }
  std::stable_sort(
      result.events.begin(), result.events.end(),
      [](const SimulatedEvent& a, const SimulatedEvent& b) { return a.begin_ns < b.begin_ns; });
  result.device_bytes_at_position = std::move(device_bytes_);
  return result;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan,
                                    const CostModel& costs, bool with_events) {
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  const auto same_uses = [&] {
    for (int32_t i = 0; i < trace.num_positions(); ++i) {
      if (plan.first_use[i] != trace.operators[i].first_use) return false;
    }
    return std::equal(plan.uses.begin(), plan.uses.end(), trace.uses.begin(), trace.uses.end(),
                      [](int32_t range, const RangeUse& use) { return range == use.range; });
  };
  if (plan.fingerprint != trace.fingerprint || plan.chunk_bytes != trace.chunk_bytes ||
      plan.num_positions() != trace.num_positions() || plan.ranges != trace.ranges ||
      plan.updated != trace.updated || !same_uses()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of phase ", plan.phase, " (", plan.num_positions(),
                     " positions) is not of the trace of phase ", trace.phase, " (",
                     trace.num_positions(), " positions)"));
  }
  Playback playback(trace, plan, costs, with_events);
  int64_t round_ns = playback.PlayRound();
  int rounds = 1;
  for (int64_t before_ns = -1; rounds < kMostRounds && round_ns != before_ns; ++rounds) {
    before_ns = round_ns;
    round_ns = playback.PlayRound();
  }
  return playback.TakeResult(round_ns);
}

}  // namespace gemini::policies
