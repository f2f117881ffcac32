// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "policies/fetch_order.h"
#include "policies/fetch_timing.h"
#include "policies/next_uses.h"
#include "policies/playback.h"
#include "policies/replacement.h"
#include "policies/stay.h"

namespace gemini::policies {
namespace {

// Whether each stay leaves something to write back: written by an operator, or by a gradient.
std::vector<bool> DirtyStays(const RangeTrace& trace, const std::vector<Stay>& stays) {
  const int32_t n = trace.num_positions();
  std::vector<std::vector<int32_t>> writes_of(trace.ranges.size());
  size_t next_out = 0;
  for (int32_t position = 0; position < n; ++position) {
    for (const RangeUse& use : trace.uses_of(position)) {
      if (use.written) writes_of[use.range].push_back(position);
    }
    for (; next_out < trace.gradient_outs.size() &&
           trace.gradient_outs[next_out].position == position;
         ++next_out) {
      writes_of[trace.gradient_outs[next_out].range].push_back(position);
    }
  }
  std::vector<bool> dirty;
  for (const Stay& stay : stays) {
    const std::vector<int32_t>& writes = writes_of[stay.range];
    const auto first = std::lower_bound(writes.begin(), writes.end(), stay.needed);
    dirty.push_back((first != writes.end() && *first <= stay.last) ||
                    (!writes.empty() && writes.front() + n <= stay.last));
  }
  return dirty;
}

Plan AssemblePlan(const PlanInputs& in, const std::vector<Stay>& stays,
                  const std::vector<int32_t>& fetch_after) {
  const RangeTrace& trace = in.trace;
  const int32_t n = trace.num_positions();
  Plan plan;
  plan.phase = trace.phase;
  plan.fingerprint = trace.fingerprint;
  plan.policy = in.policy;
  plan.chunk_bytes = trace.chunk_bytes;
  plan.device_bytes = in.budget_bytes[Tier::kDevice];
  plan.ranges = trace.ranges;
  plan.updated = trace.updated;
  for (const RangeTrace::Operator& at : trace.operators) plan.first_use.push_back(at.first_use);
  plan.first_use.push_back(static_cast<int32_t>(trace.uses.size()));
  for (const RangeUse& use : trace.uses) plan.uses.push_back(use.range);
  const std::vector<bool> dirty = DirtyStays(trace, stays);
  for (size_t i = 0; i < stays.size(); ++i) {
    const Stay& stay = stays[i];
    const SlotId slot(stay.slot);
    if (stay.needed != kAlways) {
      const bool early = fetch_after[i] < 0;
      plan.fetches.push_back({.range = stay.range,
                              .slot = slot,
                              .after = early ? fetch_after[i] + n : fetch_after[i],
                              .needed_at = early ? stay.needed + n : stay.needed});
      if (early || stay.last >= n) plan.initial.push_back({.range = stay.range, .slot = slot});
    } else {
      plan.initial.push_back({.range = stay.range, .slot = slot});
    }
    if (stay.end == StayEnd::kEvicted) {
      plan.evictions.push_back(
          {.range = stay.range, .after = stay.last % n, .writes_back = dirty[i]});
    }
  }
  std::sort(plan.initial.begin(), plan.initial.end(),
            [](const PlannedResident& a, const PlannedResident& b) { return a.slot < b.slot; });
  std::stable_sort(plan.fetches.begin(), plan.fetches.end(),
                   [](const PlannedFetch& a, const PlannedFetch& b) {
                     return std::pair(a.needed_at, a.after) < std::pair(b.needed_at, b.after);
                   });
  // What is dropped at once does not wait behind what is written back.
  std::stable_sort(plan.evictions.begin(), plan.evictions.end(),
                   [](const PlannedEviction& a, const PlannedEviction& b) {
                     return std::pair(a.after, a.writes_back) < std::pair(b.after, b.writes_back);
                   });
  return plan;
}

// Ranges of parameters that some operator uses, first used first, until they are the fraction of all
// such chunks.
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

// Times this close are one: their prediction is no better than that.
constexpr double kSameTime = 0.01;

// Whether `a` is to be preferred.
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

class Planner {
 public:
  Planner(const PlanInputs& in, std::vector<int32_t> slots_at)
      : in_(in), next_uses_(in.trace), slots_at_(std::move(slots_at)) {}

  absl::StatusOr<Plan> Make(const ReplacementRule& rule, std::string name) {
    GEMINI_ASSIGN_OR_RETURN(stays_, Stays(rule));
    return Finish(stays_, std::move(name));
  }

  // As Make, when the plan would be better than `best`, the one made before.
  void Consider(const ReplacementRule& rule, std::string name, Plan& best) {
    if (!MayBeBetter(LeastFetchedChunks(rule), best)) return;
    absl::StatusOr<std::vector<Stay>> stays = Stays(rule);
    if (!stays.ok() || *stays == stays_ || !MayBeBetter(FetchedChunks(*stays), best)) return;
    Plan plan = Finish(*stays, std::move(name));
    if (!IsBetter(plan, best)) return;
    best = std::move(plan);
    stays_ = *std::move(stays);
  }

 private:
  absl::StatusOr<std::vector<Stay>> Stays(const ReplacementRule& rule) const {
    const int32_t num_slots = static_cast<int32_t>(
        std::min<int64_t>(in_.budget_bytes[Tier::kDevice] / in_.trace.chunk_bytes, MostSlots()));
    return MakeStays(in_.trace, next_uses_, slots_at_, num_slots, rule);
  }

  Plan Finish(const std::vector<Stay>& stays, std::string name) const {
    Plan plan = AssemblePlan(in_, stays, FetchTimes(in_.trace, next_uses_, slots_at_, stays));
    OrderFetches(in_.trace, in_.costs, plan);
    plan.made_by = std::move(name);
    Playback playback(in_.trace, plan, in_.costs, FetchChoice::kInOrder, /*with_events=*/false);
    plan.prediction = playback.PlayToSteadyState().totals;
    return plan;
  }

  int64_t FetchedChunks(const std::vector<Stay>& stays) const {
    int64_t chunks = 0;
    for (const Stay& stay : stays) {
      if (stay.needed != kAlways) chunks += in_.trace.ranges[stay.range].num_bundles;
    }
    return chunks;
  }

  // The fewest that the rule leaves, whatever its stays: who streams comes for each operator that uses
  // it, but for one behind another.
  int64_t LeastFetchedChunks(const ReplacementRule& rule) const {
    int64_t chunks = 0;
    if (!rule.streams) return chunks;
    for (int32_t position = 0; position < in_.trace.num_positions(); ++position) {
      const RangeTrace::Operator& at = in_.trace.operators[position];
      for (int32_t use = at.first_use; use < at.first_use + at.num_uses; ++use) {
        const int32_t range = in_.trace.uses[use].range;
        const bool kept = !rule.kept.empty() && rule.kept[range];
        const int32_t next = next_uses_.next[use] != kNever
                                 ? next_uses_.next[use]
                                 : in_.trace.num_positions() + next_uses_.first[range];
        if (!kept && next != position + 1) chunks += in_.trace.ranges[range].num_bundles;
      }
    }
    return chunks;
  }

  // Whether a plan that fetches so many could be: no plan is faster than its link.
  bool MayBeBetter(int64_t fetched_chunks, const Plan& best) const {
    const int64_t fetch_bytes = fetched_chunks * in_.trace.chunk_bytes;
    const double least_ns =
        std::max(static_cast<double>(best.prediction.compute_ns),
                 static_cast<double>(fetch_bytes) * 1e9 / in_.costs.host_to_device +
                     static_cast<double>(fetched_chunks * in_.costs.copy_latency_ns));
    const double best_ns = static_cast<double>(best.prediction.round_ns);
    if (least_ns > best_ns) return false;
    // If it cannot be faster by more than what counts, it has to move less.
    return least_ns < (1 - kSameTime) * best_ns || fetch_bytes <= best.prediction.fetch_bytes;
  }

  // More than all chunks that are ever used is never taken; a huge budget need not be a huge table.
  int64_t MostSlots() const {
    int64_t chunks = 0;
    for (size_t range = 0; range < in_.trace.ranges.size(); ++range) {
      if (next_uses_.first[range] != kNever) chunks += in_.trace.ranges[range].num_bundles;
    }
    return 2 * chunks;
  }

  const PlanInputs& in_;
  const NextUses next_uses_;
  const std::vector<int32_t> slots_at_;
  std::vector<Stay> stays_;  // Of the best plan.
};

absl::StatusOr<Plan> MakeUnchecked(const PlanInputs& in) {
  const RangeTrace& trace = in.trace;
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at,
                          SlotsAtPositions(trace, in.budget_bytes[Tier::kDevice]));
  Planner planner(in, std::move(slots_at));
  const ReplacementRule cpu = {.streams = true};
  const ReplacementRule cuda = {.kept = std::vector<bool>(trace.ranges.size(), true)};
  switch (in.policy.kind) {
    case PolicyKind::kCpu:
      return planner.Make(cpu, "cpu");
    case PolicyKind::kCuda:
      return planner.Make(cuda, "cuda");
    case PolicyKind::kStatic:
      if (!(in.policy.param_fraction >= 0 && in.policy.param_fraction <= 1)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a parameter fraction of ", in.policy.param_fraction, ": it is from 0 to 1"));
      }
      return planner.Make({.kept = KeptParams(trace, in.policy.param_fraction), .streams = true},
                          absl::StrCat("static ", in.policy.param_fraction));
    case PolicyKind::kOnline:
      return absl::UnimplementedError("policy online has no plan: chunks are placed on demand");
    case PolicyKind::kAuto:
      break;
  }
  GEMINI_ASSIGN_OR_RETURN(Plan best, planner.Make({}, "belady"));
  // Rules that change nothing in this trace are not worth their time.
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [&](const RangeUse& use) { return trace.ranges[use.range].num_bundles > 1; })) {
    planner.Consider({.oldest_first = false}, "belady, runs apart", best);
  }
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [](const RangeUse& use) { return use.written; })) {
    planner.Consider({.spares_dirty = true}, "belady, dirty later", best);
  }
  planner.Consider(cuda, "cuda", best);
  planner.Consider(cpu, "cpu", best);
  for (const double fraction : {0.25, 0.5, 0.75}) {
    planner.Consider({.kept = KeptParams(trace, fraction), .streams = true},
                     absl::StrCat("static ", fraction), best);
  }
  return best;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanInputs& in) {
  GEMINI_ASSIGN_OR_RETURN(Plan plan, MakeUnchecked(in));
  if (const absl::Status status = CheckPlan(plan); !status.ok()) {
    return absl::InternalError(
        absl::StrCat("the planner made what is no plan: ", status.message()));
  }
  return plan;
}

int64_t DeviceFloorBytes(const RangeTrace& trace) { return LargestOperatorBytes(trace); }

}  // namespace gemini::policies
