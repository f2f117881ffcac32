// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/status_macros.h"
#include "policies/device_updates.h"
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

// By slot: the position for which it is first fetched into in a round.
std::vector<int32_t> FirstNeeds(const RangeTrace& trace, const std::vector<Stay>& stays) {
  std::vector<int32_t> first;
  for (const Stay& stay : stays) {
    const size_t end = stay.slot + trace.ranges[stay.range].num_bundles;
    if (first.size() < end) first.resize(end, kNever);
    if (stay.needed == kAlways) continue;
    for (size_t slot = stay.slot; slot < end; ++slot) {
      first[slot] = std::min(first[slot], stay.needed);
    }
  }
  return first;
}

Plan AssemblePlan(const PlanInputs& in, const RangeTrace& trace, const NextUses& next_uses,
                  const std::vector<Stay>& stays, const std::vector<int32_t>& fetch_after) {
  const int32_t n = trace.num_positions();
  Plan plan;
  plan.phase = trace.phase;
  plan.fingerprint = trace.fingerprint;
  plan.policy = in.policy;
  plan.chunk_bytes = trace.chunk_bytes;
  plan.device_bytes = in.budget_bytes[Tier::kDevice];
  plan.ranges = trace.ranges;
  plan.updated = trace.updated;
  plan.device_updates = trace.device_updates;
  PinnedUses pinned(trace);
  plan.first_use = std::move(pinned.first_use);
  plan.uses = std::move(pinned.uses);
  std::vector<bool> changes_on_device(trace.ranges.size());
  for (const PlannedUpdate& update : trace.device_updates) {
    for (const int32_t range : {update.param, update.exp_avg, update.exp_avg_sq}) {
      changes_on_device[range] = true;
    }
  }
  const std::vector<bool> dirty = DirtyStays(trace, stays);
  struct Leaving {
    PlannedEviction eviction;
    int32_t needed;  // Behind the last operator: when the next round needs the room.
    bool operator<(const Leaving& other) const {
      // What is dropped at once does not wait behind what is written back, nor this behind what stays.
      const auto key = [](const Leaving& of) {
        return std::tuple(of.eviction.after, of.eviction.stays, of.eviction.writes_back, of.needed);
      };
      return key(*this) < key(other);
    }
  };
  std::vector<Leaving> leaving;
  const std::vector<int32_t> first_needs = FirstNeeds(trace, stays);
  for (size_t i = 0; i < stays.size(); ++i) {
    const Stay& stay = stays[i];
    const SlotId slot(stay.slot);
    if (stay.needed != kAlways) {
      const bool early = fetch_after[i] < 0;
      plan.fetches.push_back({.range = stay.range,
                              .slot = slot,
                              .after = early ? fetch_after[i] + n : fetch_after[i],
                              .needed_at = early ? stay.needed + n : stay.needed,
                              .blank = next_uses.comes_blank[stay.range] &&
                                       stay.needed == next_uses.first[stay.range]});
      if (early || stay.last >= n) plan.initial.push_back({.range = stay.range, .slot = slot});
    } else {
      plan.initial.push_back({.range = stay.range, .slot = slot});
    }
    // Nothing else writes to what is updated on DEVICE: once it is written back, it is clean.
    const bool outlives_update =
        changes_on_device[stay.range] && (stay.needed == kAlways || stay.last >= n);
    if (outlives_update) {
      leaving.push_back(
          {{.range = stay.range, .after = n - 1, .writes_back = true, .stays = true}, kNever});
    }
    if (stay.end == StayEnd::kEvicted) {
      const int64_t bundles = trace.ranges[stay.range].num_bundles;
      const auto first_need = first_needs.begin() + stay.slot;
      leaving.push_back(
          {{.range = stay.range,
            .after = stay.last % n,
            .writes_back = dirty[i] && !outlives_update},
           stay.last == n - 1 ? *std::min_element(first_need, first_need + bundles) : 0});
    }
  }
  std::sort(plan.initial.begin(), plan.initial.end(),
            [](const PlannedResident& a, const PlannedResident& b) { return a.slot < b.slot; });
  std::stable_sort(plan.fetches.begin(), plan.fetches.end(),
                   [](const PlannedFetch& a, const PlannedFetch& b) {
                     return std::pair(a.needed_at, a.after) < std::pair(b.needed_at, b.after);
                   });
  std::stable_sort(leaving.begin(), leaving.end());
  for (const Leaving& leaves : leaving) plan.evictions.push_back(leaves.eviction);
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

// Makes plans of one trace: that of the inputs, or with some updates on DEVICE.
class Planner {
 public:
  Planner(const PlanInputs& in, const RangeTrace& trace, std::vector<int32_t> slots_at)
      : in_(in),
        trace_(trace),
        next_uses_(trace),
        slots_at_(std::move(slots_at)),
        compute_ns_(ComputeNs(in, trace)) {}

  absl::StatusOr<Plan> Make(const ReplacementRule& rule, std::string name) {
    GEMINI_ASSIGN_OR_RETURN(stays_, Stays(rule));
    return Finish(stays_, std::move(name));
  }

  // As Make; nothing: the plan would be that of the last Make, or cannot be better than `best`.
  std::optional<Plan> Try(const ReplacementRule& rule, std::string name, const Plan& best) const {
    if (!MayBeBetter(LeastFetchedChunks(rule), best)) return std::nullopt;
    const absl::StatusOr<std::vector<Stay>> stays = Stays(rule);
    if (!stays.ok() || *stays == stays_) return std::nullopt;
    if (!MayBeBetter(FetchedChunks(*stays), best)) return std::nullopt;
    return Finish(*stays, std::move(name));
  }

 private:
  static int64_t ComputeNs(const PlanInputs& in, const RangeTrace& trace) {
    int64_t ns = trace.device_updates.empty() ? 0 : DeviceUpdateNs(trace, in.costs);
    for (const RangeTrace::Operator& at : trace.operators) ns += at.compute_ns;
    return ns;
  }

  absl::StatusOr<std::vector<Stay>> Stays(const ReplacementRule& rule) const {
    const int32_t num_slots = static_cast<int32_t>(
        std::min<int64_t>(in_.budget_bytes[Tier::kDevice] / trace_.chunk_bytes, MostSlots()));
    return MakeStays(trace_, next_uses_, slots_at_, num_slots, rule);
  }

  Plan Finish(const std::vector<Stay>& stays, std::string name) const {
    Plan plan = AssemblePlan(in_, trace_, next_uses_, stays,
                             FetchTimes(trace_, next_uses_, slots_at_, stays));
    OrderFetches(trace_, in_.costs, plan);
    plan.made_by = std::move(name);
    if (const size_t updates = plan.device_updates.size(); updates > 0) {
      absl::StrAppend(&plan.made_by, ", ", updates, updates == 1 ? " update" : " updates",
                      " on DEVICE");
    }
    Playback playback(trace_, plan, in_.costs, FetchChoice::kInOrder, /*with_events=*/false);
    plan.prediction = playback.PlayToSteadyState().totals;
    plan.prediction.device_floor_bytes = LargestOperatorBytes(in_.trace);
    return plan;
  }

  int64_t FetchedChunks(const std::vector<Stay>& stays) const {
    int64_t chunks = 0;
    for (const Stay& stay : stays) {
      if (stay.needed == kAlways) continue;
      if (next_uses_.comes_blank[stay.range] && stay.needed == next_uses_.first[stay.range])
        continue;
      chunks += trace_.ranges[stay.range].num_bundles;
    }
    return chunks;
  }

  // The fewest that the rule leaves, whatever its stays: who streams comes for each operator that uses
  // it, but for one behind another.
  int64_t LeastFetchedChunks(const ReplacementRule& rule) const {
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

  // Whether a plan that fetches so many could be: no plan is faster than its link.
  bool MayBeBetter(int64_t fetched_chunks, const Plan& best) const {
    const int64_t fetch_bytes = fetched_chunks * trace_.chunk_bytes;
    const double least_ns =
        std::max(static_cast<double>(compute_ns_),
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
    for (size_t range = 0; range < trace_.ranges.size(); ++range) {
      if (next_uses_.first[range] != kNever) chunks += trace_.ranges[range].num_bundles;
    }
    return 2 * chunks;
  }

  const PlanInputs& in_;
  const RangeTrace& trace_;
  const NextUses next_uses_;
  const std::vector<int32_t> slots_at_;
  const int64_t compute_ns_;
  std::vector<Stay> stays_;  // Of the plan that Make made.
};

// The ranges that the round may update on DEVICE, first used first.
std::vector<int32_t> Updatable(const PlanInputs& in) {
  if (!(in.costs.device_update_elements_per_second > 0)) return {};
  return UpdatableOnDevice(in.trace);
}

// Looks for updates on DEVICE that make the round faster: those of the first so many ranges. What is used
// first has its gradients last, and the next round begins with it.
class DeviceUpdateSearch {
 public:
  // `best`, the best plan without, is what `rule` made, or another.
  DeviceUpdateSearch(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name,
                     Plan& best)
      : in_(in),
        rule_(rule),
        rule_name_(std::move(rule_name)),
        best_(best),
        updatable_(Updatable(in)),
        is_large_(in.trace.uses.size() > kManyUses) {
    for (const RangeTrace::Operator& at : in.trace.operators) compute_ns_ += at.compute_ns;
    std::vector<int64_t> out_bytes(in.trace.ranges.size(), 0);
    for (const RangeTrace::GradOut& out : in.trace.gradient_outs) {
      out_bytes[out.range] += out.size_bytes;
    }
    for (const int32_t range : updatable_) {
      chunks_.push_back(chunks_.back() + in.trace.ranges[range].num_bundles);
      out_bytes_.push_back(out_bytes_.back() + out_bytes[range + 1]);
    }
  }

  void Run() {
    if (updatable_.empty()) return;
    size_t before = 0, at = 0, behind = 0;  // The best length, and its neighbours.
    int64_t last_ns = best_.prediction.round_ns;
    size_t last = 0;
    for (size_t length = is_large_ ? Longer(0) : 1; length != last;
         last = length, length = Longer(length)) {
      const std::optional<int64_t> ns = Try(length);
      if (best_length_ == length) {
        before = last;
        at = behind = length;
      } else if (best_length_ == last) {
        behind = length;
      }
      if (!ns || static_cast<double>(*ns) > (1 + kSameTime) * static_cast<double>(last_ns)) break;
      last_ns = *ns;
    }
    if (best_length_ == 0 || is_large_) return;
    if (const size_t shorter = (before + at) / 2; shorter > before) {
      Try(shorter);
      if (best_length_ == shorter) behind = std::exchange(at, shorter);
    }
    constexpr int kRefinements = 3;
    for (int i = 0; i < kRefinements && behind - at > 1; ++i) {
      const size_t longer = (at + behind) / 2;
      Try(longer);
      (best_length_ == longer ? at : behind) = longer;
    }
  }

 private:
  // Twice the chunks, and from 1 to enough that it shows: a few lengths, whatever the number of ranges.
  // Of a large trace fewer, for each takes as long as a plan without.
  size_t Longer(size_t length) const {
    const int64_t least = is_large_ ? std::max(4 * chunks_[length], chunks_.back() / 32)
                                    : std::max(2 * chunks_[length], chunks_.back() / 64);
    const auto from = chunks_.begin() + std::max<size_t>(length, 1);
    return std::lower_bound(from, chunks_.end() - 1, least) - chunks_.begin();
  }

  // Plays the plan with updates of the first `length` ranges. Nothing: they do not fit, or cannot make
  // the round faster.
  std::optional<int64_t> Try(size_t length) {
    const auto params = absl::MakeConstSpan(updatable_).first(length);
    if (!MayBeFaster(length)) return std::nullopt;
    const RangeTrace trace = WithDeviceUpdates(in_.trace, params);
    absl::StatusOr<std::vector<int32_t>> slots_at =
        SlotsAtPositions(trace, in_.budget_bytes[Tier::kDevice]);
    if (!slots_at.ok()) return std::nullopt;
    std::optional<Plan> plan =
        Planner(in_, trace, *std::move(slots_at)).Try(rule_, rule_name_, best_);
    if (!plan) return std::nullopt;
    const int64_t round_ns = plan->prediction.round_ns;
    if (IsBetter(*plan, best_)) {
      best_ = *std::move(plan);
      best_length_ = length;
    }
    return round_ns;
  }

  // Each range is computed, and leaves four times: as gradients, parameters and moments. That is more
  // bytes than before, so it has to be faster by what counts.
  bool MayBeFaster(size_t length) const {
    const int64_t bytes = chunks_[length] * in_.trace.chunk_bytes;
    const double compute_ns =
        static_cast<double>(compute_ns_) + static_cast<double>(bytes / kElementBytes) * 1e9 /
                                               in_.costs.device_update_elements_per_second;
    const int64_t evict_bytes = 4 * bytes + out_bytes_.back() - out_bytes_[length];
    const double evict_ns = static_cast<double>(evict_bytes) * 1e9 / in_.costs.device_to_host;
    return std::max(compute_ns, evict_ns) <
           (1 - kSameTime) * static_cast<double>(best_.prediction.round_ns);
  }

  const PlanInputs& in_;
  const ReplacementRule& rule_;
  const std::string rule_name_;
  Plan& best_;
  size_t best_length_ = 0;  // 0: without is the best.
  const std::vector<int32_t> updatable_;
  // 25 ms for a plan with tensors that span chunks.
  static constexpr size_t kManyUses = 5'000;
  const bool is_large_;
  int64_t compute_ns_ = 0;
  // Of the first so many ranges: their chunks, and the gradients that leave without updates on DEVICE.
  std::vector<int64_t> chunks_ = {0};
  std::vector<int64_t> out_bytes_ = {0};
};

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
  for (const int32_t range : Updatable(in)) {
    left -= in.trace.ranges[range].num_bundles;
    if (left < 0) break;
    params.push_back(range);
  }
  const RangeTrace trace = WithDeviceUpdates(in.trace, params);
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at,
                          SlotsAtPositions(trace, in.budget_bytes[Tier::kDevice]));
  ReplacementRule rule = {.kept = KeptParams(in.trace, param_fraction), .streams = streams};
  rule.kept.resize(trace.ranges.size());
  for (const PlannedUpdate& update : trace.device_updates) {
    for (const int32_t range : {update.param, update.exp_avg, update.exp_avg_sq, update.grad}) {
      rule.kept[range] = true;
    }
  }
  if (!streams) rule.kept.assign(trace.ranges.size(), true);
  return Planner(in, trace, std::move(slots_at)).Make(rule, std::move(name));
}

absl::StatusOr<Plan> MakeBest(const PlanInputs& in, std::vector<int32_t> slots_at) {
  const RangeTrace& trace = in.trace;
  Planner planner(in, trace, std::move(slots_at));
  ReplacementRule rule;
  std::string rule_name = "belady";
  GEMINI_ASSIGN_OR_RETURN(Plan best, planner.Make(rule, rule_name));
  const auto consider = [&](const ReplacementRule& other, std::string name) {
    std::optional<Plan> plan = planner.Try(other, std::move(name), best);
    const bool is_better = plan && IsBetter(*plan, best);
    if (is_better) best = *std::move(plan);
    return is_better;
  };
  // Rules that change nothing in this trace are not worth their time.
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [&](const RangeUse& use) { return trace.ranges[use.range].num_bundles > 1; }) &&
      consider({.oldest_first = false}, "belady, runs apart")) {
    rule = {.oldest_first = false};
    rule_name = "belady, runs apart";
  }
  if (std::any_of(trace.uses.begin(), trace.uses.end(),
                  [](const RangeUse& use) { return use.written; }) &&
      consider({.spares_dirty = true}, "belady, dirty later")) {
    rule = {.spares_dirty = true};
    rule_name = "belady, dirty later";
  }
  consider({.kept = std::vector<bool>(trace.ranges.size(), true)}, "cuda");
  consider({.streams = true}, "cpu");
  for (const double fraction : {0.25, 0.5, 0.75}) {
    consider({.kept = KeptParams(trace, fraction), .streams = true},
             absl::StrCat("static ", fraction));
  }
  DeviceUpdateSearch(in, rule, rule_name, best).Run();
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
