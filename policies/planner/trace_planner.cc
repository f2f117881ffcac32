// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/trace_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/fetch_timing.h"
#include "policies/planner/plan_assembly.h"
#include "policies/simulator/fetch_order.h"
#include "policies/simulator/playback.h"
#include "policies/trace/host_update.h"
#include "policies/trace/kept_gradients.h"

namespace gemini::policies {
namespace {

// What the round takes at least, whatever it moves: what it computes, and its updates in HOST.
double LeastNs(const PlanInputs& in, const RangeTrace& trace) {
  int64_t compute_ns = LastOperatorNs(trace, in.costs);
  for (const RangeTrace::Operator& at : trace.operators) compute_ns += at.compute_ns;
  double update_ns = 0;
  for (const int32_t range : trace.updated) {
    update_ns += static_cast<double>(HostUpdateNs(trace, trace.ranges[range], in.costs));
  }
  return std::max(static_cast<double>(compute_ns), update_ns);
}

// A plan that is this far is finished though its time is over, but not if nobody waits for it.
PlanInterrupt GivenUp(const PlanInterrupt& interrupt) {
  return [&interrupt] {
    const absl::Status status = interrupt ? interrupt() : absl::OkStatus();
    return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
  };
}

}  // namespace

bool IsBetter(const Plan& a, const Plan& b) {
  const auto bytes = [](const Plan& plan) {
    return plan.prediction.fetch_bytes + plan.prediction.evict_bytes;
  };
  const double a_ns = static_cast<double>(a.prediction.round_ns);
  const double b_ns = static_cast<double>(b.prediction.round_ns);
  if (a_ns < (1 - kSameTime) * b_ns) return true;
  if (b_ns < (1 - kSameTime) * a_ns) return false;
  return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a_ns < b_ns;
}

TracePlanner::TracePlanner(const PlanInputs& in, const RangeTrace& trace,
                           std::vector<int32_t> slots_at)
    : in_(in),
      trace_(trace),
      next_uses_(trace),
      slots_at_(std::move(slots_at)),
      least_ns_(LeastNs(in, trace)) {}

absl::StatusOr<Plan> TracePlanner::Make(const ReplacementRule& rule, std::string name) {
  GEMINI_ASSIGN_OR_RETURN(stays_, Stays(rule));
  return Finish(stays_, std::move(name));
}

std::optional<Plan> TracePlanner::Try(const ReplacementRule& rule, std::string name,
                                      const Plan& best) const {
  if (!MayBeBetter(LeastFetchedChunks(rule), best)) return std::nullopt;
  const absl::StatusOr<std::vector<Stay>> stays = Stays(rule);
  if (!stays.ok() || *stays == stays_) return std::nullopt;
  if (!MayBeBetter(FetchedChunks(*stays), best)) return std::nullopt;
  absl::StatusOr<Plan> plan = Finish(*stays, std::move(name));
  if (!plan.ok()) return std::nullopt;
  return *std::move(plan);
}

absl::StatusOr<std::vector<Stay>> TracePlanner::Stays(const ReplacementRule& rule) const {
  const int32_t num_slots = static_cast<int32_t>(
      std::min<int64_t>(in_.budget_bytes[Tier::kDevice] / trace_.chunk_bytes, MostSlots()));
  return MakeStays(trace_, next_uses_, slots_at_, num_slots, rule, in_.interrupt);
}

absl::StatusOr<Plan> TracePlanner::Finish(const std::vector<Stay>& stays, std::string name) const {
  const PlanInterrupt given_up = GivenUp(in_.interrupt);
  const std::vector<int32_t> times = FetchTimes(trace_, next_uses_, slots_at_, stays);
  GEMINI_RETURN_IF_ERROR(given_up());
  Plan plan = AssemblePlan(in_, trace_, next_uses_, stays, times);
  GEMINI_RETURN_IF_ERROR(OrderFetches(trace_, in_.costs, given_up, plan));
  GEMINI_RETURN_IF_ERROR(given_up());
  plan.made_by = std::move(name);
  if (const size_t updates = plan.device_updates.size(); updates > 0) {
    absl::StrAppend(&plan.made_by, ", ", updates, updates == 1 ? " update" : " updates",
                    " on DEVICE");
  }
  if (const size_t late = plan.late_gradients.size(); late > 0) {
    absl::StrAppend(&plan.made_by, ", ", late, late == 1 ? " late gradient" : " late gradients");
  }
  Playback playback(trace_, plan, in_.costs, FetchChoice::kInOrder, PlaybackNotes::kNone);
  plan.prediction = playback.PlayToSteadyState().totals;
  plan.prediction.device_floor_bytes = LargestOperatorBytes(in_.trace);
  return plan;
}

int64_t TracePlanner::FetchedChunks(const std::vector<Stay>& stays) const {
  int64_t chunks = 0;
  for (const Stay& stay : stays) {
    if (stay.needed == kAlways) continue;
    if (next_uses_.comes_blank[stay.range] && stay.needed == next_uses_.first[stay.range]) continue;
    chunks += trace_.ranges[stay.range].num_bundles;
  }
  return chunks;
}

int64_t TracePlanner::LeastFetchedChunks(const ReplacementRule& rule) const {
  int64_t chunks = 0;
  if (!rule.streams) return chunks;
  for (int32_t position = 0; position < trace_.num_positions(); ++position) {
    const RangeTrace::Operator& at = trace_.operators[position];
    for (int32_t use = at.first_use; use < at.first_use + at.num_uses; ++use) {
      const int32_t range = trace_.uses[use].range;
      const bool kept = !rule.kept.empty() && rule.kept[range];
      const int32_t next = next_uses_.next[use] != kNever
                               ? next_uses_.next[use]
                               : trace_.num_positions() + next_uses_.first[range];
      if (!kept && next != position + 1) chunks += trace_.ranges[range].num_bundles;
    }
  }
  return chunks;
}

bool TracePlanner::MayBeBetter(int64_t fetched_chunks, const Plan& best) const {
  const int64_t fetch_bytes = fetched_chunks * trace_.chunk_bytes;
  const double least_ns =
      std::max(least_ns_, ExactTransferNs(fetch_bytes, in_.costs.host_to_device) +
                              static_cast<double>(fetched_chunks * in_.costs.copy_latency_ns));
  const double best_ns = static_cast<double>(best.prediction.round_ns);
  if (least_ns > best_ns) return false;
  // If it cannot be faster by more than what counts, it has to move less.
  return least_ns < (1 - kSameTime) * best_ns || fetch_bytes <= best.prediction.fetch_bytes;
}

int64_t TracePlanner::MostSlots() const {
  int64_t chunks = 0;
  for (size_t range = 0; range < trace_.ranges.size(); ++range) {
    if (next_uses_.first[range] != kNever) chunks += trace_.ranges[range].num_bundles;
  }
  return 2 * chunks;
}

}  // namespace gemini::policies
