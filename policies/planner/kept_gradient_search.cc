// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/kept_gradient_search.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "policies/planner/plan_effort.h"
#include "policies/planner/trace_planner.h"
#include "policies/trace/kept_gradients.h"
#include "policies/trace/next_uses.h"

namespace gemini::policies {
namespace {

// How many of the first ranges that may keep gradients are updated on DEVICE, and how many behind
// them have late gradients.
struct Kept {
  size_t updates = 0;
  size_t late = 0;
  size_t end() const { return updates + late; }
  bool operator==(const Kept&) const = default;
};

class Search {
 public:
  Search(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name, Plan& best)
      : in_(in),
        rule_(rule),
        rule_name_(std::move(rule_name)),
        best_(best),
        keepable_(Keepable(in)) {
    const RangeTrace& trace = in.trace;
    for (const RangeTrace::Operator& at : trace.operators) compute_ns_ += at.compute_ns;
    for (const int32_t range : trace.updated) {
      updated_elements_ += trace.ElementsOf(trace.ranges[range]);
    }
    std::vector<int64_t> out_bytes(trace.ranges.size(), 0);
    for (const RangeTrace::GradOut& out : trace.gradient_outs) {
      out_bytes[out.range] += out.size_bytes;
    }
    for (const int32_t range : keepable_) {
      const int64_t num_chunks = trace.ranges[range].num_bundles;
      chunks_.push_back(chunks_.back() + num_chunks);
      elements_.push_back(elements_.back() + trace.ElementsOf(trace.ranges[range]));
      bundle_bytes_.push_back(bundle_bytes_.back() +
                              TrainableKinds(trace.format_of(trace.ranges[range])).size() *
                                  num_chunks * trace.chunk_bytes);
      out_bytes_.push_back(out_bytes_.back() + out_bytes[RangeTrace::GradOf(range)]);
    }
    const int64_t steps = PlanSteps(trace);
    tries_left_ = EffortFor(steps).most_kept_tries;
    is_large_ = steps > 9'000;
    if (is_large_) rule_.most_rounds = 1;
  }

  void Run() {
    if (keepable_.empty()) return;
    const Prediction without = best_.prediction;
    const bool may_be_late = MayBeLate(in_.trace, keepable_);
    Extend({}, &Kept::updates, without, may_be_late ? (tries_left_ + 2) / 3 : tries_left_);
    if (!may_be_late) return;
    const Kept updates = best_kept_;
    const Prediction with_updates = best_.prediction;
    Extend({}, &Kept::late, without, (tries_left_ + 1) / 2);
    if (updates.updates > 0) Extend(updates, &Kept::late, with_updates, tries_left_);
  }

 private:
  // Extends `base`, whose plan is predicted so, by ever more updates or late gradients.
  void Extend(const Kept& base, size_t Kept::*what, const Prediction& of_base, int64_t most_tries) {
    const int64_t last_tries = tries_left_ - most_tries;
    const auto extended = [&](size_t by) {
      Kept kept = base;
      kept.*what += by;
      return kept;
    };
    const auto attempt = [&](size_t by) -> std::optional<int64_t> {
      if (tries_left_ <= last_tries) return std::nullopt;
      return Try(extended(by), of_base);
    };
    size_t before = 0, at = 0, behind = 0;  // The best length, and its neighbours.
    int64_t last_ns = of_base.round_ns;
    size_t last = 0;
    for (size_t by = is_large_ ? Longer(base, 0) : 1;
         by != last && base.end() + by < chunks_.size(); last = by, by = Longer(base, by)) {
      const std::optional<int64_t> ns = attempt(by);
      if (best_kept_ == extended(by)) {
        before = last;
        at = behind = by;
      } else if (at > 0 && at == last) {
        behind = by;
      }
      if (!ns || static_cast<double>(*ns) > (1 + kSameTime) * static_cast<double>(last_ns)) break;
      last_ns = *ns;
    }
    if (at == 0) return;
    if (const size_t shorter = (before + at) / 2; shorter > before) {
      attempt(shorter);
      if (best_kept_ == extended(shorter)) behind = std::exchange(at, shorter);
    }
    constexpr int kRefinements = 3;
    for (int i = 0; i < kRefinements && behind - at > 1; ++i) {
      const size_t longer = (at + behind) / 2;
      attempt(longer);
      (best_kept_ == extended(longer) ? at : behind) = longer;
    }
  }

  // Twice the chunks, and from 1 to enough that it shows: a few lengths, whatever the number of
  // ranges. Of a large trace fewer.
  size_t Longer(const Kept& base, size_t by) const {
    const int64_t chunks = ChunksFrom(base.end(), by);
    const int64_t all = chunks_.back();
    const int64_t least =
        is_large_ ? std::max(4 * chunks, all / 32) : std::max(2 * chunks, all / 64);
    const auto first = chunks_.begin() + base.end();
    const auto from = std::min(first + std::max<size_t>(by, 1), chunks_.end() - 1);
    return std::lower_bound(from, chunks_.end() - 1, *first + least) - first;
  }

  int64_t ChunksFrom(size_t first, size_t count) const {
    return chunks_[first + count] - chunks_[first];
  }

  // Plays the plan. Nothing: what is kept does not fit, or cannot make the round faster.
  std::optional<int64_t> Try(const Kept& kept, const Prediction& of_base) {
    if (!MayBeFaster(kept, of_base)) return std::nullopt;
    if (in_.interrupt && !in_.interrupt().ok()) return std::nullopt;
    const auto keepable = absl::MakeConstSpan(keepable_);
    const RangeTrace trace = WithKeptGradients(in_.trace, keepable.first(kept.updates),
                                               keepable.subspan(kept.updates, kept.late));
    absl::StatusOr<std::vector<int32_t>> slots_at =
        SlotsAtPositions(trace, in_.budget_bytes[Tier::kDevice]);
    if (!slots_at.ok()) return std::nullopt;
    --tries_left_;
    std::optional<Plan> plan =
        TracePlanner(in_, trace, *std::move(slots_at)).Try(rule_, rule_name_, best_);
    if (!plan) return std::nullopt;
    const int64_t round_ns = plan->prediction.round_ns;
    // To be slower and move less does not count: small steps would add up.
    if (round_ns <= best_.prediction.round_ns && IsBetter(*plan, best_)) {
      best_ = *std::move(plan);
      best_kept_ = kept;
    }
    return round_ns;
  }

  // No round is faster than what it computes, what its updates in HOST take or what leaves: of an
  // update on DEVICE gradients, parameters and moments. Late gradients take room, so what comes is
  // hardly less than without them. All that is more bytes than before, so it has to be faster by
  // what counts.
  bool MayBeFaster(const Kept& kept, const Prediction& of_base) const {
    const CostModel& costs = in_.costs;
    const int64_t late_bytes = ChunksFrom(kept.updates, kept.late) * in_.trace.chunk_bytes;
    const int64_t on_device = elements_[kept.updates];
    const int64_t late = elements_[kept.end()] - on_device;
    const double compute_ns =
        static_cast<double>(compute_ns_) +
        ExactTransferNs(on_device, costs.device_update_elements_per_second) +
        kSquaresByUpdate * ExactTransferNs(late, costs.device_update_elements_per_second);
    const double update_ns =
        ExactTransferNs(updated_elements_ - on_device, costs.update_elements_per_second);
    const double evict_ns = ExactTransferNs(
        bundle_bytes_[kept.updates] + late_bytes + out_bytes_.back() - out_bytes_[kept.end()],
        costs.device_to_host);
    const double fetch_ns =
        kept.late == 0 ? 0 : ExactTransferNs(of_base.fetch_bytes, costs.host_to_device);
    return std::max({compute_ns, update_ns, evict_ns, fetch_ns}) <
           (1 - kSameTime) * static_cast<double>(best_.prediction.round_ns);
  }

  const PlanInputs& in_;
  ReplacementRule rule_;
  const std::string rule_name_;
  Plan& best_;
  Kept best_kept_;  // None: without is the best.
  const std::vector<int32_t> keepable_;
  bool is_large_ = false;
  int64_t tries_left_ = 0;
  int64_t compute_ns_ = 0;
  int64_t updated_elements_ = 0;
  // Sums over the first ranges, by their number: the chunks and elements of their parameters, the
  // bytes of whole bundles, and the gradients that leave when none are kept.
  std::vector<int64_t> chunks_ = {0};
  std::vector<int64_t> elements_ = {0};
  std::vector<int64_t> bundle_bytes_ = {0};
  std::vector<int64_t> out_bytes_ = {0};
};

}  // namespace

std::vector<int32_t> Keepable(const PlanInputs& in) {
  if (!(in.costs.device_update_elements_per_second > 0)) return {};
  return MayKeepGradients(in.trace);
}

void SearchKeptGradients(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name,
                         Plan& best) {
  Search(in, rule, std::move(rule_name), best).Run();
}

}  // namespace gemini::policies
