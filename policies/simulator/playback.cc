// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/playback.h"

#include <algorithm>

#include "policies/trace/host_update.h"
#include "policies/trace/kept_gradients.h"

namespace gemini::policies {
namespace {

// The first round finds `initial` there; a second or third one is like all that follow.
constexpr int kMostRounds = 6;

}  // namespace

Playback::Playback(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                   FetchChoice choice, PlaybackNotes notes)
    : trace_(trace),
      plan_(plan),
      costs_(costs),
      trust_ratio_ns_(TrustRatioNs(trace, costs)),
      last_operator_ns_(LastOperatorNs(trace, costs)),
      host_(trace, plan, time_, notes != PlaybackNotes::kNone),
      slots_(plan, time_),
      record_(trace.num_positions(), notes == PlaybackNotes::kHostUsesAndEvents),
      updates_(trace, plan, costs, host_, record_),
      fetches_({trace, plan, costs, time_, host_, slots_, record_}, updates_, choice),
      written_ns_(trace.ranges.size(), 0),
      behind_write_backs_(BehindWriteBacks(plan)) {}

int64_t Playback::PlayRound() {
  next_eviction_ = next_out_ = 0;
  fetches_.BeginRound();
  time_.round_begin_ns = time_.now_ns;
  host_.BeginRound();
  record_.BeginRound();
  // The last interval is not over yet; it is that of each round's end in steady state.
  slots_.TakeFresh();
  fetches_.Release(Gate::EndOf(-1));
  const int64_t fresh_at_begin = slots_.TakeFresh();
  slots_.BeginRound();
  int64_t fresh_slots = fresh_at_begin;
  for (time_.position = 0; time_.position < trace_.num_positions(); ++time_.position) {
    const int32_t position = time_.position;
    fetches_.Release(Gate::BeginOf(position));
    const int64_t used = slots_.used();
    Begin(position);
    // Of an update's interval the intent and what is updated on DEVICE are the beginning, of others
    // the operator may be all.
    const int64_t begin_ns = time_.now_ns;
    const int64_t compute_ns = trace_.operators[position].compute_ns;
    time_.now_ns += IsUpdate(position) ? last_operator_ns_ : compute_ns;
    if (IsUpdate(position)) GiveUpInHost();
    LeaveAfter(position);
    if (IsUpdate(position)) UpdateInHost(begin_ns + trust_ratio_ns_);
    slots_.TakeFresh();
    fetches_.Release(Gate::EndOf(position));
    fresh_slots = slots_.TakeFresh();
    if (IsUpdate(position)) time_.now_ns += compute_ns;
    if (position == trace_.num_positions() - 1) fresh_slots += fresh_at_begin;
    record_.SetDeviceBytes(position, (used + fresh_slots) * trace_.chunk_bytes +
                                         trace_.operators[position].non_model_peak_bytes);
  }
  --time_.position;
  ++time_.rounds;
  time_.round_ns = time_.now_ns - time_.round_begin_ns;
  return time_.round_ns;
}

void Playback::Begin(int32_t position) {
  fetches_.BeginAllFor(position);
  Moment begin = {.ns = time_.now_ns};
  const auto wait_for = [&begin](Moment moment) {
    if (moment.ns > begin.ns) begin = moment;
  };
  for (const RangeUse& use : trace_.uses_of(position)) wait_for(fetches_.ready(use.range));
  wait_for(gradients_free_);
  if (IsUpdate(position)) {
    wait_for(evict_free_);
    wait_for(updates_.free());
  }
  if (position == 0) wait_for({host_.begin_ns(), StallCause::kNvme});
  wait_for({slots_.FitNs(SlotsBeside(trace_, plan_, position), begin.ns), StallCause::kRoom});
  const int64_t stall_ns = begin.ns - time_.now_ns;
  time_.now_ns = begin.ns;
  record_.totals.compute_ns += ComputeNs(position);
  record_.totals.stall_ns[static_cast<int>(begin.cause)] += stall_ns;
  record_.Add({.lane = Lane::kCompute,
               .subject = position,
               .begin_ns = begin.ns,
               .end_ns = begin.ns + ComputeNs(position),
               .stall_ns = stall_ns,
               .cause = begin.cause});
}

void Playback::CopyOut(HostEvent event, size_t index, int32_t range, int64_t size_bytes) {
  const int64_t asked_ns = std::max(time_.now_ns, evict_free_.ns);
  const int64_t copies_ns = CopiesNs(trace_, costs_, range, size_bytes, costs_.device_to_host);
  const int64_t last_copy_ns = copies_ns / trace_.ranges[range].num_bundles;
  const HostReady host = host_.Ask(event, static_cast<int32_t>(index), asked_ns, last_copy_ns);
  const int64_t begin_ns = std::max(asked_ns, host.first_ns);
  const int64_t end_ns = std::max(begin_ns + copies_ns, host.last_ns + last_copy_ns);
  evict_free_ = {end_ns, end_ns > asked_ns + copies_ns ? StallCause::kNvme : StallCause::kTransfer};
  record_.totals.evict_bytes += size_bytes;
  record_.Add({.lane = Lane::kEvict,
               .subject = range,
               .size_bytes = size_bytes,
               .begin_ns = begin_ns,
               .end_ns = end_ns});
}

void Playback::LeaveAfter(int32_t position) {
  for (; next_out_ < trace_.gradient_outs.size() &&
         trace_.gradient_outs[next_out_].position == position;
       ++next_out_) {
    const RangeTrace::GradOut& out = trace_.gradient_outs[next_out_];
    if (slots_.holds(out.range)) continue;
    CopyOut(HostEvent::kGradient, next_out_, out.range, out.size_bytes);
    QueueGradient(evict_free_);
  }
  for (;
       next_eviction_ < plan_.evictions.size() && plan_.evictions[next_eviction_].after == position;
       ++next_eviction_) {
    const PlannedEviction& eviction = plan_.evictions[next_eviction_];
    const int32_t range = eviction.range;
    if (eviction.writes_back) {
      CopyOut(HostEvent::kWriteBack, next_eviction_, range, PayloadBytes(trace_, range));
      written_ns_[range] = back_ns_ = evict_free_.ns;
    }
    if (!eviction.stays) {
      const bool is_behind = behind_write_backs_[next_eviction_];
      slots_.Vacate(range, is_behind ? std::max(time_.now_ns, back_ns_) : time_.now_ns);
    }
  }
}

void Playback::QueueGradient(Moment end) {
  Moment& oldest = gradient_ends_[gradients_++ % kMaxGradientsUnderWay];
  if (oldest.ns > gradients_free_.ns) gradients_free_ = oldest;
  oldest = end;
}

void Playback::GiveUpInHost() {
  for (size_t i = 0; i < plan_.device_updates.size(); ++i) {
    host_.Ask(HostEvent::kGiveUp, static_cast<int32_t>(i), time_.now_ns, 0);
  }
}

void Playback::UpdateInHost(int64_t begin_ns) {
  for (const int32_t range : plan_.updated) {
    if (slots_.holds(range)) slots_.Vacate(range, begin_ns);
  }
  updates_.Play(begin_ns, written_ns_);
}

Simulation Playback::PlayToSteadyState() {
  int64_t round_ns = PlayRound();
  int64_t before_ns = -1;
  for (int rounds = 1; rounds < kMostRounds && round_ns != before_ns; ++rounds) {
    before_ns = round_ns;
    round_ns = PlayRound();
  }
  return record_.Take(time_);
}

}  // namespace gemini::policies
