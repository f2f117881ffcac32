// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/kept_gradient_search.h"
#include "policies/planner/plan_effort.h"
#include "policies/planner/trace_planner.h"
#include "policies/simulator/host_plan.h"
#include "policies/simulator/host_playback.h"
#include "policies/trace/kept_gradients.h"
#include "policies/trace/next_uses.h"

namespace gemini::policies {
namespace {

constexpr int64_t kMostLatencyNs = 1'000'000'000;
constexpr double kMostRoundNs = 1e16;  // 115 days: a hundred such times are below 2^63.

// Ranges of parameters that some operator uses, first used first, until they are the fraction of
// all such chunks.
std::vector<bool> KeptParams(const RangeTrace& trace, double fraction) {
  std::vector<int32_t> params;
  std::vector<bool> seen(trace.ranges.size()), kept(trace.ranges.size());
  int64_t chunks = 0;
  for (const RangeUse& use : trace.uses) {
    if (seen[use.range] || trace.ranges[use.range].kind != ChunkKind::kParam) continue;
    seen[use.range] = true;
    params.push_back(use.range);
    chunks += trace.ranges[use.range].num_bundles;
  }
  int64_t left = std::llround(fraction * static_cast<double>(chunks));
  for (const int32_t range : params) {
    left -= trace.ranges[range].num_bundles;
    if (left < 0) break;
    kept[range] = true;
  }
  return kept;
}

absl::Status CheckFraction(double fraction, absl::string_view what) {
  if (fraction >= 0 && fraction <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a fraction of ", fraction, " of the ", what, ": it is from 0 to 1"));
}

// The fractions stay, and the others come for each operator, or stay too.
absl::StatusOr<Plan> MakeStatic(const PlanInputs& in, double param_fraction,
                                double optimizer_fraction, bool streams, std::string name) {
  int64_t trained = 0;
  for (const int32_t range : in.trace.updated) trained += in.trace.ranges[range].num_bundles;
  int64_t left = std::llround(optimizer_fraction * static_cast<double>(trained));
  std::vector<int32_t> params;
  for (const int32_t range : Keepable(in)) {
    left -= in.trace.ranges[range].num_bundles;
    if (left < 0) break;
    params.push_back(range);
  }
  const RangeTrace trace = WithKeptGradients(in.trace, params, {});
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at,
                          SlotsAtPositions(trace, in.budget_bytes[Tier::kDevice]));
  ReplacementRule rule = {.kept = KeptParams(in.trace, param_fraction), .streams = streams};
  rule.kept.resize(trace.ranges.size());
  for (const PlannedUpdate& update : trace.device_updates) {
    for (const int32_t range : update.used()) rule.kept[range] = true;
  }
  if (!streams) rule.kept.assign(trace.ranges.size(), true);
  return TracePlanner(in, trace, std::move(slots_at)).Make(rule, std::move(name));
}

absl::StatusOr<Plan> MakeBest(const PlanInputs& in, std::vector<int32_t> slots_at) {
  const RangeTrace& trace = in.trace;
  const PlanEffort effort = EffortFor(PlanSteps(trace));
  TracePlanner planner(in, trace, std::move(slots_at));
  ReplacementRule rule = {.most_rounds = effort.most_rounds, .most_closings = effort.most_closings};
  std::string rule_name = "belady";
  GEMINI_ASSIGN_OR_RETURN(Plan best, planner.Make(rule, rule_name));
  if (!effort.compares_rules) return best;
  const auto consider = [&](ReplacementRule other, std::string name) {
    other.most_rounds = effort.most_rounds;
    other.most_closings = effort.most_closings;
    std::optional<Plan> plan = planner.Try(other, name, best);
    const bool is_better = plan && IsBetter(*plan, best);
    if (is_better) best = *std::move(plan);
    return is_better;
  };
  // Rules that change nothing in this trace are not worth their time.
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [&](const RangeUse& use) { return trace.ranges[use.range].num_bundles > 1; }) &&
      consider({.oldest_first = false}, "belady, runs apart")) {
    rule.oldest_first = false;
    rule_name = "belady, runs apart";
  }
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [](const RangeUse& use) { return use.written; }) &&
      consider({.spares_dirty = true}, "belady, dirty later")) {
    rule.oldest_first = true;
    rule.spares_dirty = true;
    rule_name = "belady, dirty later";
  }
  consider({.kept = std::vector<bool>(trace.ranges.size(), true)}, "cuda");
  consider({.streams = true}, "cpu");
  for (const double fraction : {0.25, 0.5, 0.75}) {
    consider({.kept = KeptParams(trace, fraction), .streams = true},
             absl::StrCat("static ", fraction));
  }
  SearchKeptGradients(in, rule, std::move(rule_name), best);
  return best;
}

absl::StatusOr<Plan> MakeUnchecked(const PlanInputs& in) {
  // Whatever the policy: below the floor there is no plan.
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at,
                          SlotsAtPositions(in.trace, in.budget_bytes[Tier::kDevice]));
  const PolicyOptions& policy = in.policy;
  switch (policy.kind) {
    case PolicyKind::kCpu:
      return MakeStatic(in, 0, 0, /*streams=*/true, "cpu");
    case PolicyKind::kCuda:
      return MakeStatic(in, 1, 1, /*streams=*/false, "cuda");
    case PolicyKind::kStatic:
      GEMINI_RETURN_IF_ERROR(CheckFraction(policy.param_fraction, "parameters"));
      GEMINI_RETURN_IF_ERROR(CheckFraction(policy.optimizer_fraction, "optimizer"));
      return MakeStatic(in, policy.param_fraction, policy.optimizer_fraction, /*streams=*/true,
                        absl::StrCat("static ", policy.param_fraction));
    case PolicyKind::kOnline:
      return absl::UnimplementedError("policy online has no plan: chunks are placed on demand");
    case PolicyKind::kAuto:
      break;
  }
  return MakeBest(in, std::move(slots_at));
}

// Whether no time that is played with these costs can overflow: whoever asked for the plan may have
// said them.
absl::Status CheckCosts(const PlanInputs& in) {
  const CostModel& costs = in.costs;
  const bool updates_on_device = costs.device_update_elements_per_second != 0;
  double least = kMostRate;
  for (const double rate :
       {costs.host_to_device, costs.device_to_host, costs.nvme_read, costs.nvme_write,
        costs.update_elements_per_second,
        updates_on_device ? costs.device_update_elements_per_second : kMostRate}) {
    // Written so that NaN is refused.
    if (!(rate >= kLeastRate && rate <= kMostRate)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rate of ", rate, " a second: ", kLeastRate, " to ", kMostRate));
    }
    least = std::min(least, rate);
  }
  if (costs.copy_latency_ns < 0 || costs.copy_latency_ns > kMostLatencyNs) {
    return absl::InvalidArgumentError(absl::StrCat("a copy takes ", costs.copy_latency_ns,
                                                   " ns beside its bytes: 0 to ", kMostLatencyNs));
  }
  // Nothing that a round does takes more bytes, or elements, than all its chunks have.
  const double round_ns = static_cast<double>(PlanSteps(in.trace)) *
                          (static_cast<double>(in.trace.chunk_bytes) * 1e9 / least +
                           static_cast<double>(costs.copy_latency_ns));
  if (round_ns <= kMostRoundNs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a round would take up to ", round_ns / 1e9, " s at ", least,
                   " bytes or elements a second: is the link held back too far?"));
}

// What HOST and NVME do is foreseen of the plan that won, and had no say in that. Where the time is
// over before, nothing is foreseen there.
void PredictHost(const PlanInputs& in, Plan& plan) {
  const int64_t host_bytes = in.budget_bytes[Tier::kHost];
  if (HostHoldsAll(in.trace, host_bytes)) return;
  PlayedPlan played = PlayInHost(WithKeptGradients(in.trace, plan), plan, in.costs, host_bytes,
                                 /*with_events=*/false, in.interrupt);
  if (in.interrupt && !in.interrupt().ok()) return;  // What was played is void.
  played.played.totals.device_floor_bytes = plan.prediction.device_floor_bytes;
  plan.prediction = played.played.totals;
  plan.host_uses = PlannedHostUses(played.host_uses);
  plan.host_read_ns = HostReadNs(plan.chunk_bytes, in.costs);
}

// Returns the trace with peaks that fill its room, or nothing if the peaks do already.
std::optional<RangeTrace> WithRoomFilled(const RangeTrace& trace) {
  const auto has_room = [](const RangeTrace::Operator& at) {
    return at.room_bytes > at.non_model_peak_bytes;
  };
  if (std::ranges::none_of(trace.operators, has_room)) return std::nullopt;
  RangeTrace filled = trace;
  for (RangeTrace::Operator& at : filled.operators) {
    at.non_model_peak_bytes = std::max(at.non_model_peak_bytes, at.room_bytes);
  }
  return filled;
}

// Makes a plan that leaves room for the peaks alone.
absl::StatusOr<Plan> MakePlanOfPeaks(const PlanInputs& inputs) {
  // Once it said to stop it is not asked again: nothing else is begun.
  PlanInputs in = inputs;
  absl::Status stopped;
  if (inputs.interrupt) {
    in.interrupt = [&inputs, &stopped] {
      if (stopped.ok()) stopped = inputs.interrupt();
      return stopped;
    };
  }
  GEMINI_ASSIGN_OR_RETURN(Plan plan, MakeUnchecked(in));
  PredictHost(in, plan);
  if (in.interrupt) {
    const absl::Status end = in.interrupt();
    // Out of time, the best plan so far is better than none.
    if (!end.ok() && !absl::IsDeadlineExceeded(end)) return end;
  }
  if (const absl::Status status = CheckPlan(plan); !status.ok()) {
    return absl::InternalError(
        absl::StrCat("the planner made what is no plan: ", status.message()));
  }
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanInputs& inputs) {
  GEMINI_RETURN_IF_ERROR(CheckPlanSteps(PlanSteps(inputs.trace)));
  GEMINI_RETURN_IF_ERROR(CheckCosts(inputs));
  if (const std::optional<RangeTrace> filled = WithRoomFilled(inputs.trace)) {
    absl::StatusOr<Plan> plan = MakePlanOfPeaks({.trace = *filled,
                                                 .budget_bytes = inputs.budget_bytes,
                                                 .costs = inputs.costs,
                                                 .policy = inputs.policy,
                                                 .interrupt = inputs.interrupt});
    if (!absl::IsResourceExhausted(plan.status())) {
      if (plan.ok()) plan->prediction.device_floor_bytes = DeviceFloorBytes(inputs.trace);
      return plan;
    }
  }
  return MakePlanOfPeaks(inputs);
}

int64_t DeviceFloorBytes(const RangeTrace& trace) { return LargestOperatorBytes(trace); }

}  // namespace gemini::policies
