// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/fetch_lane.h"

#include <algorithm>
#include <numeric>

namespace gemini::policies {

int64_t PayloadBytes(const RangeTrace& trace, int32_t range) {
  const PlannedRange& chunks = trace.ranges[range];
  return chunks.num_bundles * trace.PayloadOf(chunks);
}

int64_t CopiesNs(const RangeTrace& trace, const CostModel& costs, int32_t range, int64_t size_bytes,
                 double bytes_per_second) {
  return trace.ranges[range].num_bundles * costs.copy_latency_ns +
         TransferNs(size_bytes, bytes_per_second);
}

int64_t SlotsBeside(const RangeTrace& trace, const Plan& plan, int32_t position) {
  return (plan.device_bytes - trace.operators[position].non_model_peak_bytes) / trace.chunk_bytes;
}

FetchLane::FetchLane(const PlaybackParts& parts, const UpdateLane& updates, FetchChoice choice)
    : parts_(parts),
      updates_(updates),
      choice_(choice),
      by_release_(parts.plan.fetches.size()),
      waiting_(static_cast<int64_t>(parts.trace.ranges.size())),
      ready_(parts.trace.ranges.size()),
      begun_ns_(parts.plan.fetches.size(), 0) {
  std::iota(by_release_.begin(), by_release_.end(), 0);
  if (choice == FetchChoice::kNeededFirst) {
    std::stable_sort(by_release_.begin(), by_release_.end(), [&](int32_t a, int32_t b) {
      return GateOf(parts.plan.fetches[a]) < GateOf(parts.plan.fetches[b]);
    });
  }
}

void FetchLane::Release(Gate moment) {
  while (!waiting_.empty() && waiting_.NextBeginNs(free_ns_) < parts_.time.now_ns) BeginNext();
  for (; next_ < by_release_.size(); ++next_) {
    const int32_t index = by_release_[next_];
    const PlannedFetch& fetch = parts_.plan.fetches[index];
    if (GateOf(fetch) > moment) break;
    // Its room is taken from now on, whenever the copy begins.
    parts_.slots.Take(fetch.range, fetch.slot);
    const WaitingFetch waiting = {
        .earliest = EarliestBegin(fetch),
        .needed_at = parts_.time.rounds * parts_.trace.num_positions() + fetch.needed_at,
        .fetch = index,
        .range = fetch.range};
    if (choice_ == FetchChoice::kInOrder) {
      Begin(waiting);
    } else {
      waiting_.Push(waiting);
    }
  }
}

void FetchLane::BeginAllFor(int32_t position) {
  for (const RangeUse& use : parts_.trace.uses_of(position)) {
    while (waiting_.IsWaiting(use.range)) BeginNext();
  }
}

void FetchLane::BeginNext() { Begin(waiting_.Pop(free_ns_)); }

Moment FetchLane::EarliestBegin(const PlannedFetch& fetch) const {
  // In the interval before the first operator non-model data is that of the last one.
  const int32_t position =
      parts_.time.position < 0 ? parts_.trace.num_positions() - 1 : parts_.time.position;
  Moment earliest = {.ns = parts_.time.now_ns};
  const auto wait_for = [&earliest](int64_t ns, StallCause cause) {
    if (ns > earliest.ns) earliest = {ns, cause};
  };
  wait_for(parts_.slots.left_ns(fetch.range), StallCause::kRoom);
  wait_for(parts_.slots.VacatedNs(fetch.range, fetch.slot), StallCause::kRoom);
  const int64_t others = SlotsBeside(parts_.trace, parts_.plan, position) -
                         parts_.trace.ranges[fetch.range].num_bundles;
  wait_for(parts_.slots.FitNextNs(others), StallCause::kRoom);
  const UpdateLane::Commits& commits = updates_.commits(fetch.range);
  wait_for(commits.first_ns, commits.cause);
  return earliest;
}

void FetchLane::Begin(const WaitingFetch& waiting) {
  const PlannedFetch& fetch = parts_.plan.fetches[waiting.fetch];
  Moment begin = waiting.earliest;
  if (!fetch.blank && begin.ns <= free_ns_) begin = {.ns = free_ns_};
  const int64_t listed_in_round =
      (waiting.needed_at - fetch.needed_at) / parts_.trace.num_positions();
  if (listed_in_round == kWatchedRound) begun_ns_[waiting.fetch] = begin.ns;
  parts_.slots.BeginCopy(fetch.range, begin.ns);
  if (fetch.blank) {
    // Those behind it begin no earlier than it does.
    free_ns_ = std::max(free_ns_, begin.ns);
    ready_[fetch.range] = begin;
    return;
  }
  const UpdateLane::Commits& commits = updates_.commits(fetch.range);
  const int64_t size_bytes = PayloadBytes(parts_.trace, fetch.range);
  const int64_t copies_ns =
      CopiesNs(parts_.trace, parts_.costs, fetch.range, size_bytes, parts_.costs.host_to_device);
  // Copies and commits both follow one another evenly, so the first chunk or the last one decides.
  const int64_t last_copy_ns = copies_ns / parts_.trace.ranges[fetch.range].num_bundles;
  const HostReady host = parts_.host.Ask(HostEvent::kFetch, waiting.fetch, begin.ns, last_copy_ns);
  if (host.first_ns > begin.ns) begin = {host.first_ns, StallCause::kNvme};
  free_ns_ = begin.ns + copies_ns;
  const auto end_after = [&](int64_t last_ns, StallCause cause) {
    if (last_ns + last_copy_ns <= free_ns_) return;
    free_ns_ = last_ns + last_copy_ns;
    begin.cause = cause;
  };
  end_after(commits.last_ns, commits.cause);
  end_after(host.last_ns, StallCause::kNvme);
  ready_[fetch.range] = {free_ns_, begin.cause};
  parts_.record.totals.fetch_bytes += size_bytes;
  parts_.record.Add({.lane = Lane::kFetch,
                     .subject = fetch.range,
                     .size_bytes = size_bytes,
                     .begin_ns = begin.ns,
                     .end_ns = free_ns_});
}

}  // namespace gemini::policies
