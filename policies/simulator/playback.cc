// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/playback.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "policies/trace/host_update.h"
#include "policies/trace/kept_gradients.h"

namespace gemini::policies {
namespace {

// The first round finds `initial` there; a second or third one is like all that follow.
constexpr int kMostRounds = 6;

int64_t NsFor(int64_t amount, double rate) {
  return static_cast<int64_t>(std::llround(static_cast<double>(amount) * 1e9 / rate));
}

int64_t ReleaseOf(const PlannedFetch& fetch) {
  return 2 * int64_t{fetch.after} + (fetch.after == fetch.needed_at ? 0 : 1);
}

}  // namespace

Playback::Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                   FetchChoice choice, bool with_events)
    : trace_(trace),
      plan_(plan),
      costs_(costs),
      choice_(choice),
      with_events_(with_events),
      trust_ratio_ns_(TrustRatioNs(trace, costs)),
      last_operator_ns_(LastOperatorNs(trace, costs)),
      ready_(trace.ranges.size()),
      left_ns_(trace.ranges.size(), 0),
      written_ns_(trace.ranges.size(), 0),
      commits_(trace.ranges.size()),
      slot_of_(trace.ranges.size(), kNobody),
      is_late_(trace.ranges.size()),
      begun_ns_(plan.fetches.size(), 0),
      by_release_(plan.fetches.size()),
      is_waiting_(trace.ranges.size()),
      device_bytes_(trace.num_positions(), 0) {
  for (const int32_t range : trace.late_gradients) is_late_[range - 1] = true;
  int64_t num_slots = 0;
  const auto cover = [&](int32_t range, SlotId slot) {
    num_slots = std::max(num_slots, slot.value() + plan.ranges[range].num_bundles);
  };
  for (const PlannedResident& at : plan.initial) {
    cover(at.range, at.slot);
    slot_of_[at.range] = at.slot.value();
    slots_used_ += plan.ranges[at.range].num_bundles;
  }
  for (const PlannedFetch& fetch : plan.fetches) cover(fetch.range, fetch.slot);
  vacated_.assign(num_slots, {});
  std::iota(by_release_.begin(), by_release_.end(), 0);
  if (choice == FetchChoice::kNeededFirst) {
    std::stable_sort(by_release_.begin(), by_release_.end(), [&](int32_t a, int32_t b) {
      return ReleaseOf(plan.fetches[a]) < ReleaseOf(plan.fetches[b]);
    });
  }
}

int64_t Playback::CopiesNs(int32_t range, int64_t bytes, double bytes_per_second) const {
  return trace_.ranges[range].num_bundles * costs_.copy_latency_ns + NsFor(bytes, bytes_per_second);
}

int64_t Playback::NextHostBeginNs(int64_t round_end_ns) const {
  if (host_times_ == nullptr) return round_end_ns;
  return std::max(round_end_ns, host_begin_ns_ + host_times_->least_round_ns);
}

// Known when the last operator, which is what most that comes later waits for, has begun.
int64_t Playback::RoundEndNs() const {
  if (position_ < trace_.num_positions() - 1) return round_begin_ns_ + round_ns_;
  return now_ns_ + (IsUpdate(position_) ? trace_.operators[position_].compute_ns : 0);
}

HostReady Playback::AskHost(HostEvent event, int32_t index, int64_t asked_ns, int64_t chunk_ns) {
  if (with_events_) {
    const int64_t since_ns = std::max<int64_t>(asked_ns - host_begin_ns_, 0);
    host_accesses_.push_back({event, index, since_ns, chunk_ns});
  }
  if (host_times_ == nullptr) return {};
  const HostReady ready = host_times_->of(event, index);
  const int64_t begin_ns = ready.rounds_after == 0 ? host_begin_ns_
                                                   : NextHostBeginNs(RoundEndNs()) +
                                                         (ready.rounds_after - 1) * round_ns_;
  return {.first_ns = begin_ns + ready.first_ns, .last_ns = begin_ns + ready.last_ns};
}

void Playback::Record(const SimulatedEvent& event) {
  if (with_events_) events_.push_back(event);
}

int64_t Playback::PlayRound() {
  next_fetch_ = next_eviction_ = next_out_ = 0;
  round_begin_ns_ = now_ns_;
  if (rounds_ > 0) host_begin_ns_ = NextHostBeginNs(now_ns_);
  host_accesses_.clear();
  totals_ = {};
  // The last interval is not over yet; it is that of each round's end in steady state.
  fresh_slots_ = 0;
  ReleaseFetches(-1);
  const int64_t fresh_at_begin = fresh_slots_;
  for (Vacated& slot : vacated_) slot.position = kNobody;
  for (position_ = 0; position_ < trace_.num_positions(); ++position_) {
    ReleaseFetches(2 * int64_t{position_});
    const int64_t used = slots_used_;
    Begin(position_);
    // An update's interval begins with the intent and what is updated on DEVICE. In other intervals
    // the operator may be all.
    const int64_t begin_ns = now_ns_;
    const int64_t compute_ns = trace_.operators[position_].compute_ns;
    now_ns_ += IsUpdate(position_) ? last_operator_ns_ : compute_ns;
    if (IsUpdate(position_)) GiveUpInHost();
    LeaveAfter(position_);
    if (IsUpdate(position_)) UpdateInHost(begin_ns + trust_ratio_ns_);
    fresh_slots_ = 0;
    ReleaseFetches(2 * int64_t{position_} + 1);
    if (IsUpdate(position_)) now_ns_ += compute_ns;
    if (position_ == trace_.num_positions() - 1) fresh_slots_ += fresh_at_begin;
    device_bytes_[position_] = (used + fresh_slots_) * trace_.chunk_bytes +
                               trace_.operators[position_].non_model_peak_bytes;
    totals_.device_peak_bytes = std::max(totals_.device_peak_bytes, device_bytes_[position_]);
  }
  --position_;
  ++rounds_;
  round_ns_ = now_ns_ - round_begin_ns_;
  return round_ns_;
}

void Playback::ReleaseFetches(int64_t moment) {
  // The link has gone on with what it might begin until now.
  BeginUntilNow();
  for (; next_fetch_ < by_release_.size(); ++next_fetch_) {
    const int32_t index = by_release_[next_fetch_];
    const PlannedFetch& fetch = plan_.fetches[index];
    if (ReleaseOf(fetch) > moment) break;
    // Its room is taken from now on, whenever the copy begins.
    for (int64_t i = 0; i < trace_.ranges[fetch.range].num_bundles; ++i) {
      if (vacated_[fetch.slot.value() + i].position != position_) ++fresh_slots_;
    }
    slots_used_ += trace_.ranges[fetch.range].num_bundles;
    slot_of_[fetch.range] = fetch.slot.value();
    const Waiting waiting = {.earliest = EarliestBegin(fetch),
                             .needed_at = rounds_ * trace_.num_positions() + fetch.needed_at,
                             .fetch = index};
    if (choice_ == FetchChoice::kInOrder) {
      BeginFetch(waiting);
    } else {
      coming_.push(waiting);
      is_waiting_[fetch.range] = true;
    }
  }
}

void Playback::BeginUntilNow() {
  while (!(there_.empty() && coming_.empty()) && NextBeginNs() < now_ns_) BeginNext();
}

void Playback::BeginAllFor(int32_t position) {
  for (const RangeUse& use : trace_.uses_of(position)) {
    while (is_waiting_[use.range]) BeginNext();
  }
}

int64_t Playback::NextBeginNs() const {
  return there_.empty() ? std::max(fetch_free_ns_, coming_.top().earliest.ns) : fetch_free_ns_;
}

void Playback::BeginNext() {
  for (; !coming_.empty() && coming_.top().earliest.ns <= fetch_free_ns_; coming_.pop()) {
    there_.push(coming_.top());
  }
  const Waiting next = there_.empty() ? coming_.top() : there_.top();
  if (there_.empty()) {
    coming_.pop();
  } else {
    there_.pop();
  }
  is_waiting_[plan_.fetches[next.fetch].range] = false;
  BeginFetch(next);
}

Playback::Moment Playback::EarliestBegin(const PlannedFetch& fetch) const {
  Moment earliest = {.ns = now_ns_};
  const auto wait_for = [&earliest](int64_t ns, StallCause cause) {
    if (ns > earliest.ns) earliest = {ns, cause};
  };
  wait_for(left_ns_[fetch.range], StallCause::kRoom);
  for (int64_t i = 0; i < trace_.ranges[fetch.range].num_bundles; ++i) {
    wait_for(vacated_[fetch.slot.value() + i].ns, StallCause::kRoom);
  }
  wait_for(commits_[fetch.range].first_ns, commits_[fetch.range].cause);
  return earliest;
}

void Playback::BeginFetch(const Waiting& waiting) {
  const PlannedFetch& fetch = plan_.fetches[waiting.fetch];
  Moment begin = waiting.earliest;
  if (!fetch.blank && begin.ns <= fetch_free_ns_) begin = {.ns = fetch_free_ns_};
  const int64_t listed_in_round = (waiting.needed_at - fetch.needed_at) / trace_.num_positions();
  if (listed_in_round == kWatchedRound) begun_ns_[waiting.fetch] = begin.ns;
  if (fetch.blank) {
    // Those behind it begin no earlier than it does.
    fetch_free_ns_ = std::max(fetch_free_ns_, begin.ns);
    ready_[fetch.range] = begin;
    return;
  }
  const Commits& commits = commits_[fetch.range];
  const int64_t copies_ns = CopiesNs(fetch.range, BytesOf(fetch.range), costs_.host_to_device);
  // Copies and commits both follow one another evenly, so the first chunk or the last one decides.
  const int64_t last_copy_ns = copies_ns / trace_.ranges[fetch.range].num_bundles;
  const HostReady host = AskHost(HostEvent::kFetch, waiting.fetch, begin.ns, last_copy_ns);
  if (host.first_ns > begin.ns) begin = {host.first_ns, StallCause::kNvme};
  fetch_free_ns_ = begin.ns + copies_ns;
  const auto end_after = [&](int64_t last_ns, StallCause cause) {
    if (last_ns + last_copy_ns <= fetch_free_ns_) return;
    fetch_free_ns_ = last_ns + last_copy_ns;
    begin.cause = cause;
  };
  end_after(commits.last_ns, commits.cause);
  end_after(host.last_ns, StallCause::kNvme);
  ready_[fetch.range] = {fetch_free_ns_, begin.cause};
  totals_.fetch_bytes += BytesOf(fetch.range);
  Record({.lane = Lane::kFetch,
          .subject = fetch.range,
          .size_bytes = BytesOf(fetch.range),
          .begin_ns = begin.ns,
          .end_ns = fetch_free_ns_});
}

void Playback::Begin(int32_t position) {
  BeginAllFor(position);
  Moment begin = {.ns = now_ns_};
  const auto wait_for = [&begin](Moment moment) {
    if (moment.ns > begin.ns) begin = moment;
  };
  for (const RangeUse& use : trace_.uses_of(position)) wait_for(ready_[use.range]);
  wait_for(gradients_free_);
  if (IsUpdate(position)) {
    wait_for(evict_free_);
    wait_for(update_free_);
  }
  if (position == 0) wait_for({host_begin_ns_, StallCause::kNvme});
  const int64_t stall_ns = begin.ns - now_ns_;
  now_ns_ = begin.ns;
  totals_.compute_ns += ComputeNs(position);
  totals_.stall_ns[static_cast<int>(begin.cause)] += stall_ns;
  Record({.lane = Lane::kCompute,
          .subject = position,
          .begin_ns = begin.ns,
          .end_ns = begin.ns + ComputeNs(position),
          .stall_ns = stall_ns,
          .cause = begin.cause});
}

void Playback::Vacate(int32_t range, int64_t ns, int32_t position) {
  const int64_t count = trace_.ranges[range].num_bundles;
  std::fill_n(vacated_.begin() + slot_of_[range], count, Vacated{ns, position});
  slots_used_ -= count;
  slot_of_[range] = kNobody;
  left_ns_[range] = ns;
}

void Playback::LeaveAfter(int32_t position) {
  const auto copy_out = [&](HostEvent event, size_t index, int32_t range, int64_t bytes) {
    const int64_t asked_ns = std::max(now_ns_, evict_free_.ns);
    const int64_t copies_ns = CopiesNs(range, bytes, costs_.device_to_host);
    const int64_t last_copy_ns = copies_ns / trace_.ranges[range].num_bundles;
    const HostReady host = AskHost(event, static_cast<int32_t>(index), asked_ns, last_copy_ns);
    const int64_t begin_ns = std::max(asked_ns, host.first_ns);
    const int64_t end_ns = std::max(begin_ns + copies_ns, host.last_ns + last_copy_ns);
    evict_free_ = {end_ns,
                   end_ns > asked_ns + copies_ns ? StallCause::kNvme : StallCause::kTransfer};
    totals_.evict_bytes += bytes;
    Record({.lane = Lane::kEvict,
            .subject = range,
            .size_bytes = bytes,
            .begin_ns = begin_ns,
            .end_ns = end_ns});
  };
  for (; next_out_ < trace_.gradient_outs.size() &&
         trace_.gradient_outs[next_out_].position == position;
       ++next_out_) {
    const RangeTrace::GradOut& out = trace_.gradient_outs[next_out_];
    if (slot_of_[out.range] != kNobody) continue;
    copy_out(HostEvent::kGradient, next_out_, out.range, out.size_bytes);
    QueueGradient(evict_free_);
  }
  for (;
       next_eviction_ < plan_.evictions.size() && plan_.evictions[next_eviction_].after == position;
       ++next_eviction_) {
    const PlannedEviction& eviction = plan_.evictions[next_eviction_];
    const int32_t range = eviction.range;
    if (eviction.writes_back) {
      copy_out(HostEvent::kWriteBack, next_eviction_, range, BytesOf(range));
      written_ns_[range] = evict_free_.ns;
    }
    if (!eviction.stays) Vacate(range, std::max(now_ns_, written_ns_[range]), position);
  }
}

void Playback::QueueGradient(Moment end) {
  Moment& oldest = gradient_ends_[gradients_++ % kMaxGradientsUnderWay];
  if (oldest.ns > gradients_free_.ns) gradients_free_ = oldest;
  oldest = end;
}

void Playback::GiveUpInHost() {
  for (size_t i = 0; i < plan_.device_updates.size(); ++i) {
    AskHost(HostEvent::kGiveUp, static_cast<int32_t>(i), now_ns_, 0);
  }
}

void Playback::UpdateInHost(int64_t begin_ns) {
  update_free_.ns = std::max(update_free_.ns, begin_ns);
  std::vector<int32_t> late, others;  // By arrival, and in the plan's order.
  for (const int32_t range : plan_.updated) {
    (is_late_[range] ? late : others).push_back(range);
    if (slot_of_[range] != kNobody) Vacate(range, begin_ns, position_);
  }
  const auto arrival_ns = [this](int32_t param) { return written_ns_[param + 1]; };
  std::stable_sort(late.begin(), late.end(),
                   [&](int32_t a, int32_t b) { return arrival_ns(a) < arrival_ns(b); });
  auto next_late = late.begin(), next_other = others.begin();
  while (next_late != late.end() || next_other != others.end()) {
    const bool takes_late = next_late != late.end() && (next_other == others.end() ||
                                                        arrival_ns(*next_late) <= update_free_.ns);
    const int32_t range = takes_late ? *next_late++ : *next_other++;
    const bool waits = takes_late && arrival_ns(range) > update_free_.ns;
    if (waits) update_free_.ns = arrival_ns(range);
    UpdateRange(range, waits ? StallCause::kTransfer : StallCause::kUpdate);
  }
}

void Playback::UpdateRange(int32_t range, StallCause cause) {
  const PlannedRange& updated = trace_.ranges[range];
  const int64_t update_ns = HostUpdateNs(trace_, updated, costs_);
  const int64_t bundle_ns = update_ns / updated.num_bundles;
  if (cause == StallCause::kUpdate && WaitsForNvme(trace_, updated, costs_)) {
    cause = StallCause::kNvme;
  }
  const HostReady host = AskHost(HostEvent::kUpdate, range, update_free_.ns, bundle_ns);
  const int64_t begin_ns = std::max(update_free_.ns, host.first_ns);
  const int64_t end_ns = std::max(begin_ns + update_ns, host.last_ns + bundle_ns);
  if (end_ns > update_free_.ns + update_ns) cause = StallCause::kNvme;
  update_free_ = {end_ns, cause == StallCause::kNvme ? cause : StallCause::kUpdate};
  commits_[range] = {.first_ns = begin_ns + bundle_ns, .last_ns = end_ns, .cause = cause};
  Record({.lane = Lane::kUpdate, .subject = range, .begin_ns = begin_ns, .end_ns = end_ns});
  MoveStates(updated, begin_ns);
}

void Playback::MoveStates(const PlannedRange& updated, int64_t begin_ns) {
  const int64_t bytes = StateBytesOnNvme(trace_, updated);
  if (bytes == 0) return;
  totals_.nvme_read_bytes += bytes;
  totals_.nvme_write_bytes += bytes;
  const auto record = [&](Lane lane, double rate) {
    Record({.lane = lane,
            .subject = static_cast<int32_t>(ChunkOf(updated.first, ChunkKind::kExpAvg).value()),
            .space = updated.space,
            .size_bytes = bytes,
            .begin_ns = begin_ns,
            .end_ns = begin_ns + NsFor(bytes, rate)});
  };
  record(Lane::kNvmeRead, costs_.nvme_read);
  record(Lane::kNvmeWrite, costs_.nvme_write);
}

Simulation Playback::PlayToSteadyState() {
  int64_t round_ns = PlayRound();
  int64_t before_ns = -1;
  for (int rounds = 1; rounds < kMostRounds && round_ns != before_ns; ++rounds) {
    before_ns = round_ns;
    round_ns = PlayRound();
  }
  return TakeResult(round_ns);
}

Simulation Playback::TakeResult(int64_t round_ns) {
  Simulation result;
  result.totals = totals_;
  result.totals.round_ns = round_ns;
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

}  // namespace gemini::policies
