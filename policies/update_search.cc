// SPDX-License-Identifier: Apache-2.0
#include "policies/update_search.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "policies/device_updates.h"
#include "policies/next_uses.h"
#include "policies/trace_planner.h"

namespace gemini::policies {
namespace {

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
        TracePlanner(in_, trace, *std::move(slots_at)).Try(rule_, rule_name_, best_);
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

}  // namespace

std::vector<int32_t> Updatable(const PlanInputs& in) {
  if (!(in.costs.device_update_elements_per_second > 0)) return {};
  return UpdatableOnDevice(in.trace);
}

void SearchUpdates(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name,
                   Plan& best) {
  DeviceUpdateSearch(in, rule, std::move(rule_name), best).Run();
}

}  // namespace gemini::policies
