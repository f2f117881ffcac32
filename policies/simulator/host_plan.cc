// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_plan.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "policies/simulator/host_playback.h"
#include "policies/simulator/playback.h"

namespace gemini::policies {
namespace {

// In the order of their beginning, those before the round's as the next round has them.
void AddTransfers(const std::vector<NvmeTransfer>& transfers, int64_t chunk_bytes, int64_t round_ns,
                  std::vector<SimulatedEvent>& events) {
  for (const NvmeTransfer& transfer : transfers) {
    const int64_t begin_ns = (transfer.begin_ns % round_ns + round_ns) % round_ns;
    events.push_back({.lane = transfer.is_write ? Lane::kNvmeWrite : Lane::kNvmeRead,
                      .subject = static_cast<int32_t>(transfer.chunk.value()),
                      .space = transfer.space,
                      .size_bytes = chunk_bytes,
                      .begin_ns = begin_ns,
                      .end_ns = begin_ns + transfer.end_ns - transfer.begin_ns});
  }
  std::stable_sort(
      events.begin(), events.end(),
      [](const SimulatedEvent& a, const SimulatedEvent& b) { return a.begin_ns < b.begin_ns; });
}

// The longest round that is played in HOST: 13 days. A trace may claim more, and some rounds of it
// would overflow.
constexpr int64_t kMostRoundNs = int64_t{1} << 50;

// Whether the round uses more chunks in HOST than can be played in time.
bool HasTooManyUses(const RangeTrace& trace, const Plan& plan) {
  int64_t uses = 0;
  // Whoever made the trace may have chosen large numbers: none is added up to what would overflow.
  const auto add = [&](int64_t more) {
    uses = std::min(uses, kMostHostUses) + std::min(more, kMostHostUses);
  };
  for (const PlannedFetch& fetch : plan.fetches) add(plan.ranges[fetch.range].num_bundles);
  for (const PlannedEviction& eviction : plan.evictions) {
    if (eviction.writes_back) add(plan.ranges[eviction.range].num_bundles);
  }
  for (const RangeTrace::GradOut& out : trace.gradient_outs) {
    add(out.size_bytes / trace.PayloadOf(trace.ranges[out.range]) + 1);
  }
  for (const int32_t range : plan.updated) add(kNumChunkKinds * plan.ranges[range].num_bundles);
  return uses > kMostHostUses;
}

}  // namespace

PlayedPlan PlayInHost(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                      int64_t host_bytes, bool with_events, const PlanInterrupt& interrupt) {
  PlayedPlan result;
  if (HostHoldsAll(trace, host_bytes) || HasTooManyUses(trace, plan)) {
    Playback playback(trace, plan, costs, FetchChoice::kInOrder,
                      with_events ? PlaybackNotes::kHostUsesAndEvents : PlaybackNotes::kNone);
    result.played = playback.PlayToSteadyState();
    return result;
  }
  const std::vector<int64_t> slots = SlotsOfSpaces(trace, host_bytes);
  HostTimes times;
  HostRound round;
  int64_t before_ns = 0;
  for (int turn = 0; turn <= kMostTurns; ++turn) {
    if (interrupt && !interrupt().ok()) break;
    Playback playback(trace, plan, costs, FetchChoice::kInOrder,
                      with_events ? PlaybackNotes::kHostUsesAndEvents : PlaybackNotes::kHostUses);
    if (turn > 0) playback.set_host_times(&times);
    result.played = playback.PlayToSteadyState();
    const int64_t round_ns = std::max<int64_t>(result.played.totals.round_ns, 1);
    // The first time in HOST was too long, where it was too short at all.
    const bool agree = turn > (round.transfers.empty() ? 0 : 1) &&
                       static_cast<double>(std::abs(round_ns - before_ns)) <=
                           kAgreed * static_cast<double>(before_ns);
    if (agree || turn == kMostTurns || round_ns > kMostRoundNs) break;
    before_ns = round_ns;
    result.host_uses = HostUses(trace, plan, playback.host_accesses(), round_ns);
    round = PlayHost(result.host_uses, slots, trace.chunk_bytes, costs, round_ns,
                     turn == 0 ? LateUses::kDelayAll : LateUses::kAsked, interrupt);
    times = TimesOf(playback.host_accesses(), result.host_uses, round);
  }
  Prediction& totals = result.played.totals;
  totals.nvme_read_bytes += round.read_bytes;
  totals.nvme_write_bytes += round.write_bytes;
  // Updates move states beside what is spilled, which the rounds in HOST know nothing of.
  const int64_t disk_ns = std::max(TransferNs(totals.nvme_read_bytes, costs.nvme_read),
                                   TransferNs(totals.nvme_write_bytes, costs.nvme_write));
  if (disk_ns > totals.round_ns) {
    totals.stall_ns[static_cast<size_t>(StallCause::kNvme)] += disk_ns - totals.round_ns;
    totals.round_ns = disk_ns;
  }
  if (with_events) {
    AddTransfers(round.transfers, trace.chunk_bytes,
                 std::max<int64_t>(result.played.totals.round_ns, 1), result.played.events);
  }
  return result;
}

}  // namespace gemini::policies
